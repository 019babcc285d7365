#!/usr/bin/env bash
# The bounded part of ./run faults: what needs neither root nor a wire of its own.
set -euo pipefail
exec tests/faults/fault_storm --seconds 10 --faults kill,stop
