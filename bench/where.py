#!/usr/bin/env python3
"""Where each microsecond of a pull goes: processor time of both processes by what it was for.

  bench/where.py PROGRAM [VARIANT [pull|rate|delivery BYTES]]   a PROGRAM of bench/peers; soft pull 8

Needs perf (Debian's linux-perf). Processor time, not elapsed time: on a machine that does
other things it stays what it is.
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

SECONDS = 2.0
# The first that matches any frame, innermost first, names the sample. System calls come
# before what called them, and what a thread does to sleep before the call it sleeps in.
KERNEL = [
    ("wake another thread", r"try_to_wake_up|wake_up_q|sock_def_readable|ep_poll_callback|eventfd_signal"),
    ("sleep and be woken", r"^(__)?schedule|finish_task_switch|schedule_hrtimeout|do_nanosleep|pick_next|dequeue_"),
    ("copy memory between processes", r"process_vm_rw"),
    ("send on a socket", r"__sys_send|sock_sendmsg|__x64_sys_sendmsg|tcp_sendmsg|unix_stream_sendmsg|__libc_sendmsg"),
    ("receive from a socket", r"__sys_recv|sock_recvmsg|__libc_recv|tcp_recvmsg|unix_stream_recvmsg"),
    ("epoll", r"epoll|ep_poll"),
    ("eventfd", r"eventfd"),
    ("futex", r"futex"),
    ("page faults", r"page_fault|do_fault"),
]
USER = [
    ("the harness and its checks", r"tryst::(Puller|Table|\(anonymous namespace\)::(Tryst|Resent|Link|CheckWord))"),
    ("gRPC and Protobuf", r"grpc|google::protobuf|nexting|absl::.*grpc"),
    ("verbs/soft", r"tryst::(Soft|\(anonymous namespace\)::Soft|soft)"),
    ("channel/shm", r"tryst::(Shm|shm_wire|Arena|StreamCopy|Buddy|Local)|stream_copy"),
    ("channel", r"tryst::(Fetch|Serve|Message|ChannelPool|Landing|QueueHub|wire|Grpc|Channel|.*Crc32c)"),
    ("poller", r"tryst::Poller"),
    ("rendezvous", r"tryst::(Match|Local|Routing|Step|Tensor|Cancellation|HeldBytes|Storage|Waiting|Batch|Guarded)"),
    ("clock", r"clock_gettime|SteadyClock"),
    ("locks", r"pthread_mutex|pthread_cond"),
    ("memory", r"malloc|free|operator (new|delete)|cfree"),
    ("copying bytes", r"mem(move|cpy|set|cmp)"),
    ("callbacks of other kinds", r"any_invocable|std::function|absl::"),
]


def category(frames):
    """`frames`: (symbol, whether of the kernel), innermost first."""
    for table, symbols in ((KERNEL, [s for s, _ in frames]), (USER, [s for s, kernel in frames if not kernel])):
        for symbol in symbols if table is USER else [None]:
            for name, pattern in table:
                if re.search(pattern, symbol) if symbol is not None else any(re.search(pattern, s) for s in symbols):
                    return name
    return "other system calls" if frames and frames[0][1] else "other"


def samples(text):
    """The frames of each sample of `perf script -F comm,ip,sym,dso`."""
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        frames = []
        for line in lines[1:]:
            match = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line)
            if match:
                frames.append((match[1], match[2].startswith("[kernel") or match[2].startswith("[guest")))
        if frames:
            yield lines[0].strip().split()[0], frames


def main(arguments):
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    program, variant, work, size = (arguments + ["soft", "pull", "8"][len(arguments) - 1:])[:4]
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        out = subprocess.run(["perf", "record", "-q", "-F", "2999", "-g", "-o", data, "--", program, variant, work, size,
                              str(SECONDS)], check=True, stdout=subprocess.PIPE, text=True).stdout
        script = subprocess.run(["perf", "script", "-i", data, "-F", "comm,ip,sym,dso"], check=True,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    figures = {line.split("\t")[0]: float(line.split("\t")[2]) for line in out.splitlines() if line.count("\t") == 3}
    # cpu_per_million, in seconds for a million tensors, is the same number of microseconds for one tensor.
    name, unit = next((n, u) for n, u in (("pull_cpu", "us"), ("cpu_per_million", "us"), ("cpu_per_gib", "s a GiB"))
                      if n in figures)
    each = figures[name]
    counts = collections.Counter(category(frames) for thread, frames in samples(script)
                                 if not any(re.search(r"_dl_|do_lookup|_start$|execve", s) for s, _ in frames))
    total = sum(counts.values())
    print("%s %s %s: %.3g %s of processor time, both processes\n" % (variant, work, size, each, unit))
    print("| %s | share | what for |\n| ---: | ---: | --- |" % unit)
    for what, count in counts.most_common():
        print("| %.3f | %.0f %% | %s |" % (each * count / total, 100.0 * count / total, what))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
