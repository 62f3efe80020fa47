"""Write the breast-cancer party tables of this folder from scikit-learn: python data/make_tables.py
[FOLDER].

Three hospitals with a training and a test file each: id, the 30 columns, y (0 malignant, 1 benign).
Rows are those of the default run (seed 0), so training on these files is training on the embedded
set.
"""

from __future__ import annotations

import sys
from pathlib import Path

from homo_dp.data.embedded import load_embedded
from homo_dp.data.partition import hold_out, iid, party_names

SEED, PARTIES, TEST_FRACTION = 0, 3, 0.2


def main(folder: Path) -> None:
    frame = load_embedded("breast_cancer").frame
    for name, rows in zip(party_names(PARTIES), iid(len(frame), PARTIES, SEED), strict=True):
        train, test = hold_out(len(rows), TEST_FRACTION, SEED, name)
        frame.iloc[rows[train]].to_csv(
            folder / f"breast_cancer_{name}_train.csv", index=False, lineterminator="\n"
        )
        frame.iloc[rows[test]].to_csv(
            folder / f"breast_cancer_{name}_test.csv", index=False, lineterminator="\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
