#!/usr/bin/env bash
# How .ci/run adds up what its lanes report, with a ./run and a bazel that only print.
set -euo pipefail
ci=$(readlink -f .ci/run)
cd "$TEST_TMPDIR"
mkdir -p tree/.ci bin
cp "$ci" tree/.ci/run
printf '#!/bin/sh\nexit 0\n' >bin/bazel
printf '#!/bin/sh\necho x86_64\n' >bin/uname
printf '#!/bin/sh\nexit 0\n' >bin/python3 # PyPI answers.
chmod +x bin/*
export CI_DAY=1 # TSan comes first.
failed=0
expect() { # WHAT CODE LAST_LINE, with ./run's body on stdin: its arguments are in $*.
  local code=0 out
  { echo '#!/bin/bash'; cat; } >tree/run
  chmod +x tree/run
  out=$(cd / && PATH="$TEST_TMPDIR/bin:$PATH" "$TEST_TMPDIR/tree/.ci/run" 2>&1 </dev/null) || code=$?
  if [[ $code != "$2" || $(tail -n 1 <<<"$out") != "$3" ]]; then
    echo "$1: exit $code, wanted $2; last line wanted '$3'; in:"
    echo "$out"
    failed=1
  fi
  if [[ $(grep -cxE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' <<<"$out") != 1 ]]; then
    echo "$1: more than one closing line, or none"
    failed=1
  fi
}

expect "all green" 0 "105 passed, 0 failed, 10 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 1 skipped"
exit 0
END
expect "a lane fails, twice" 1 "133 passed, 6 failed, 14 skipped" <<'END'
[[ $1 == lint ]] && exit 0
[[ ${2:-} == --tsan ]] && { echo "6 passed, 3 failed, 1 skipped"; exit 1; }
echo "10 passed, 0 failed, 1 skipped"
END
expect "a lane dies before its closing line" 1 "95 passed, 1 failed, 0 skipped" <<'END'
[[ ${2:-} == --asan ]] && kill -9 $$
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
expect "a lane that says it is green and exits otherwise" 1 "100 passed, 5 failed, 0 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
[[ $1 == test ]]
END
expect "only the last closing line of a lane counts" 0 "105 passed, 0 failed, 0 skipped" <<'END'
[[ $1 == test ]] && printf '%s\n' "7 passed, 7 failed, 7 skipped" "10 passed, 0 failed, 0 skipped"
exit 0
END
# The clock cuts off ASan's lane, as far as .ci/run can tell.
cat >bin/timeout <<'END'
#!/bin/bash
[[ $* == *' --asan //base/... //rendezvous/'* ]] && { cat "$CUT_OFF"; exit 124; }
shift 2
exec "$@"
END
chmod +x bin/timeout
export CUT_OFF=$TEST_TMPDIR/cut_off
printf '%s\n' 'ERROR: build interrupted' 'FAILED: Build did NOT complete successfully' '//base:a_test  NO STATUS' >"$CUT_OFF"
expect "a lane that is cut off" 0 "95 passed, 0 failed, 1 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
echo 'FAIL: //base:a_test (see its log)' >>"$CUT_OFF"
expect "a lane that is cut off once a test has failed" 1 "95 passed, 1 failed, 0 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
rm bin/timeout
printf '#!/bin/sh\nexit 1\n' >bin/python3 # PyPI does not.
expect "no PyPI" 0 "95 passed, 0 failed, 1 skipped" <<'END'
[[ $1 == test ]] && echo "10 passed, 0 failed, 0 skipped"
exit 0
END
export CI_MINUTES=9
expect "too little time for the longer lanes" 0 "33 passed, 0 failed, 6 skipped" <<'END'
[[ $1 == test ]] && echo "7 passed, 0 failed, 0 skipped"
exit 0
END
export CI_MINUTES=0
expect "no time" 1 "0 passed, 0 failed, 15 skipped" <<<'exit 0'
exit $failed
