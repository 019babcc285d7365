#!/usr/bin/env bash
# The part of ./run faults that needs neither root nor a wire of its own.
set -euo pipefail
exec tests/process/faults/fault_storm --seconds 10 --faults kill,stop
