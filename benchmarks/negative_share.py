"""How much of a map speaks against the answer that it explains? The share of negative contributions, image by image.

    python benchmarks/negative_share.py MODEL PHOTOS/ [--limit 32] [--out results/negative_share.json]

`MODEL` is a model directory, or `photos`. The share of an image is what its negative contributions add up to, divided
by the sum of the sizes of all contributions to its nearest class; cases are not part of it.
"""

import argparse
import json
import statistics
from pathlib import Path

from command import as_typed
from record import add

import sic
from sic.cli.options import image_files
from sic.explain.contributions import negative_share
from sic.run import spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--limit", type=int, default=32, help="images, evenly spread over the folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = sic.load(options.model)
    files = image_files([options.photos])
    files = [files[position] for position in spread(len(files), options.limit)]
    shares = [
        negative_share(explanation.classes[0].contributions.maps).item() for explanation in model.explain_many(files)
    ]
    figures = {
        "images": len(shares),
        "mean": statistics.mean(shares),
        "median": statistics.median(shares),
        "largest": max(shares),
        "measured_by": as_typed(),
    }
    if options.out is not None:
        add(options.out, {"negative_share": figures})
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
