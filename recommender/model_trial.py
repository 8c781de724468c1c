"""python -m recommender.model_trial FEATURES < MODEL: load a model that nobody trusts.

A program of its own, because damaged models crash or hang XGBoost. It writes the model as JSON to
stdout and exits with 0, or one line with the reason and exits with REFUSED.
"""

from __future__ import annotations

import resource
import sys

from recommender.errors import InvalidModel

REFUSED = 3
MEMORY_BYTES, CPU_S = 4 << 30, 20
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CPU: CPU_S,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_FSIZE: 0,
}


def main() -> int:
    """Load the model of stdin and return the exit status."""
    from recommender.cost_model import reloaded

    raw = sys.stdin.buffer.read()
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))
    try:
        sys.stdout.buffer.write(reloaded(raw, int(sys.argv[1])))
    except InvalidModel as error:
        sys.stdout.write(error.message)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
