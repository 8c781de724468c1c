"""A node whose CPU counts as several devices: what measures on them are stand-ins that sleep.

python -m tests.chaos.node --address HOST:PORT --node-ip IP --devices 8
"""

from __future__ import annotations

import argparse

from tuner_service import wiring
from workers.offer import become_node, join_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--node-ip", required=True)
    parser.add_argument("--devices", type=int, required=True)
    options = parser.parse_args()
    host = wiring.detected_host()
    become_node(
        join_command(
            host, options.address, devices=options.devices, cpus=host.cores, node_ip=options.node_ip
        )
    )


if __name__ == "__main__":
    main()
