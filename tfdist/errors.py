"""The exceptions of tfdist.

```
TfdistError
├── ClusterConfigError           (ValueError)       the cluster or a setting is wrong
├── NotInitializedError          (RuntimeError)     a call needs a job that this process is not in
├── RendezvousTimeoutError       (TimeoutError)     some ranks did not come in time
├── AuthenticationError          (PermissionError)  two tasks have other secrets or certificates
├── CertificateError             (ValueError)       TLS: a certificate or key cannot be used
├── TlsLibraryError              (OSError)          TLS: there is no OpenSSL 3
├── AddressInUseError            (OSError)          this task's port is taken
├── CheckpointError              (ValueError)       a parameter server's snapshot is damaged
├── ModelDirError                (OSError)          an Estimator's model_dir cannot be written
├── PredictionError              (ValueError)       a record, model or folder of a prediction is bad
├── RayJobError                  (RuntimeError)     a job on Ray has failed, or found no room
├── OpLibraryError               (ImportError)      the C++ op library cannot be loaded
├── UnsupportedKerasError        (ImportError)      Keras 3 is too old, or newer than tested
└── UnsupportedTensorFlowError   (ImportError)      TensorFlow is absent or of another version
```

Each also derives from the built-in exception of its kind, so `except TimeoutError` works, too.
A peer's failure during a collective raises `tf.errors.UnavailableError` or
`tf.errors.DeadlineExceededError`. `Preempted` is no error but a `SystemExit`, with which the
program of a job ends that was told to end.
"""

from __future__ import annotations


class TfdistError(Exception):
    """The base class of tfdist's own exceptions."""


class ClusterConfigError(TfdistError, ValueError):
    """The cluster, a setting or a resolver is invalid, or two tasks have different clusters."""


class NotInitializedError(TfdistError, RuntimeError):
    """The call needs a job, but this process has not entered one, or does not train in it."""


class RendezvousTimeoutError(TfdistError, TimeoutError):
    """Not every rank joined before the deadline; the message names the missing ones."""


class AuthenticationError(TfdistError, PermissionError):
    """Two tasks do not hold the same shared secret, or one of them does not encrypt; names both."""


class CertificateError(TfdistError, ValueError):
    """A certificate, key or authority of TLS is damaged, expired, or does not fit the others."""


class TlsLibraryError(TfdistError, OSError):
    """TLS needs OpenSSL 3 (`libssl.so.3`), which is absent or too old."""


class AddressInUseError(TfdistError, OSError):
    """Another process listens on the port that the cluster gives to this task."""


class CheckpointError(TfdistError, ValueError):
    """A parameter server's snapshot is truncated, altered or of another format; names the file."""


class ModelDirError(TfdistError, OSError):
    """The chief cannot write an Estimator's `model_dir`; the message says why."""


class PredictionError(TfdistError, ValueError):
    """A prediction's record, model, input or output folder is bad; the message names it."""


class RayJobError(TfdistError, RuntimeError):
    """A job of `tfdist.ray.run` has failed, or the cluster has no room; names the task and node."""


class OpLibraryError(TfdistError, ImportError):
    """The C++ op library cannot be loaded; the message says how to build it."""


class UnsupportedKerasError(TfdistError, ImportError):
    """The installed Keras 3 is too old for tfdist, or newer than the newest tested release."""


class UnsupportedTensorFlowError(TfdistError, ImportError):
    """The installed TensorFlow is absent or outside the supported range."""


class Preempted(SystemExit):
    """The job was told to end (SIGTERM), and has ended its step: ends the program with code 143.

    It passes through `except Exception`. `finally` blocks and functions of `atexit` run.
    """

    EXIT_CODE = 143  # 128 + SIGTERM

    def __init__(self) -> None:
        super().__init__(self.EXIT_CODE)


def brief(error: Exception) -> str:
    """Returns the line of a TensorFlow error's message that names a rank, else its first line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "rank " in line), lines[0] if lines else "")
