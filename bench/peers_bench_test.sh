#!/usr/bin/env bash
# Fewer peers than the bench takes, each protocol once.
set -euo pipefail
for protocol in grpc grpc+verbs; do
  echo "== $protocol"
  "$1" --peers 96 --protocol "$protocol" --settle-ms 2500 --check
done
