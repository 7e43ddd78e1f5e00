"""`import tfdist.horovod as hvd` offers the names of Horovod that tfdist has."""

from __future__ import annotations

import subprocess
import sys

import tfdist
import tfdist.horovod as hvd

# The public names of Horovod's modules for TensorFlow and Keras.
HOROVOD = {
    *("init", "shutdown", "is_initialized", "is_homogeneous", "start_timeline", "stop_timeline"),
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("rank_op", "size_op", "local_rank_op", "local_size_op", "process_set_included_op"),
    *(
        "allreduce",
        "grouped_allreduce",
        "allgather",
        "grouped_allgather",
        "broadcast",
        "broadcast_",
    ),
    *("broadcast_", "alltoall", "reducescatter", "grouped_reducescatter", "barrier", "join"),
    *("allgather_object", "broadcast_object", "broadcast_object_fn"),
    *("broadcast_variables", "broadcast_global_variables", "BroadcastGlobalVariablesHook"),
    *("DistributedOptimizer", "DistributedGradientTape"),
    *("PartialDistributedOptimizer", "PartialDistributedGradientTape"),
    *("Compression", "SyncBatchNormalization", "load_model", "callbacks", "elastic"),
    *("ProcessSet", "add_process_set", "remove_process_set", "global_process_set"),
    *("Average", "Sum", "Adasum", "Min", "Max", "Product"),
    *("mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
}


def test_the_package_has_every_name_of_horovod_that_the_root_has() -> None:
    assert set(hvd.__all__) == HOROVOD & set(tfdist.__all__)
    assert dir(hvd) == sorted(hvd.__all__)


def test_a_name_is_the_same_object_in_both() -> None:
    for name in hvd.__all__:
        assert getattr(hvd, name) is getattr(tfdist, name), name


def test_the_import_is_light() -> None:
    script = (
        "import sys, tfdist.horovod\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
