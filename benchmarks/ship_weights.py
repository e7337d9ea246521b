"""Write a file of `sic distill` as one that comes with the package: 8 bits a weight, and what is known about it.

    python benchmarks/ship_weights.py distilled.safetensors src/sic/backbones/photos.safetensors \
        --origin '{"tested_on": {"name": "ImageNet validation images", "images": 5000}}'

`--origin` is JSON, added to what the file says about itself; `tested_on` belongs to `top1`. A file that has 8 bits a
weight already keeps its values.
"""

import argparse
import json
from pathlib import Path

from sic.backbones.distilled import read_distilled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--origin", type=json.loads, default={})
    options = parser.parse_args()
    content = read_distilled(options.file)
    content.origin |= options.origin
    content.write(options.out, bits=8)
    print(json.dumps(read_distilled(options.out).origin, indent=1))


if __name__ == "__main__":
    main()
