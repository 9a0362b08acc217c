#!/usr/bin/env bash
# Install, then run every test and every notebook on a machine with a CUDA device:
#     scripts/gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
make .venv/dev
.venv/bin/python - <<'END'
import sys

import torch

if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no CUDA device")
print(torch.__version__, torch.cuda.get_device_name())
END
make test
