"""Workers of an elastic `fit` with embedding tables on two parameter servers suffer faults.

Rows and dense weights end as those of one plain process with a dense kernel in place of the table,
and each server applies each step's gradients of rows once.
"""

from __future__ import annotations

import numpy as np
import pytest
from elastic_faults import Fault, Faults, check, suffer
from elastic_training import Fit

pytestmark = pytest.mark.timeout(240)
WORKERS = 3
LEDGER = Fit(model="ledger of tables", dtype="float32", servers=2)


def test_ledger(tmp_path):
    """The rows count how often each record was trained: once in each epoch."""
    course, results = suffer(
        LEDGER,
        [
            Faults(Fault("kill", 1, "pushed", epoch=1, batch=2)),
            Faults(Fault("kill", 0, "committing", epoch=0, batch=3)),
            Faults(Fault("kill", 2, "committing", epoch=1, batch=1), Fault("kill", 0, "agreed")),
            Faults(Fault("kill", 1, delay=0.02)),
            Faults(Fault("leave", 0, "batch end", epoch=1, batch=1)),
        ],
        tmp_path,
        WORKERS,
    )
    check(LEDGER, course, results, tolerance=0.0, of_logs=1e-4)
    assert len(results) == WORKERS
    for result in results.values():
        for counts in result.weights:
            assert np.all(counts == course.epochs), counts
