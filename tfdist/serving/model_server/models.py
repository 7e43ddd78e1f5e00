"""Answers requests with the models in memory, whichever protocol has brought the requests."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import grpc
import numpy as np

from tfdist.serving.model_server.batching import Batcher
from tfdist.serving.model_server.call_error import CallError, error_of, invalid, not_found
from tfdist.serving.model_server.meters import Meters
from tfdist.serving.model_server.requests import Answer, Asked
from tfdist.serving.model_server.saved_model import LoadedModel, Loader
from tfdist.serving.model_server.signature import CLASSIFY, REGRESS, Signature
from tfdist.serving.model_server.versions import Versions, VersionState
from tfdist.serving.model_server.warmup import warm_up

_KINDS = {CLASSIFY: "classification", REGRESS: "regression"}
_log = logging.getLogger("tfdist.serving")


@dataclasses.dataclass(frozen=True)
class Serving:
    """How models are served.

    Args:
      kept: versions of each model that are in memory.
      max_batch: rows of a batch of several requests; 0 for no batches.
      batch_delay: the longest time (s) for which a request waits for others.
      tables: the addresses of the servers of embedding tables, as "host:port".
      period: seconds between two looks at a folder.
    """

    kept: int = 1
    max_batch: int = 0
    batch_delay: float = 0.005
    tables: Sequence[str] = ()
    period: float = 1.0


class ServedModel(LoadedModel):
    """A version of a model with its batches.

    Args:
      folder, version, loader, serving: as for `Models`.
      on_batch: is told the number of rows of each call of several requests.
    """

    def __init__(
        self,
        folder: Path,
        version: int,
        loader: Loader,
        serving: Serving,
        on_batch: Callable[[int], None],
    ) -> None:
        super().__init__(folder, version, loader, serving.tables)
        self._batcher = None
        if serving.max_batch:
            self._batcher = Batcher(serving.max_batch, serving.batch_delay, on_batch)

    def answer(
        self, signature: Signature, inputs: Mapping[str, np.ndarray], deadline: float
    ) -> dict[str, np.ndarray]:
        """Calls a signature, perhaps for several requests together.

        Args:
          signature: one of its own.
          inputs: with its names, types and shapes.
          deadline: the time of `time.monotonic` after which the client does not wait any more.
        """
        if self._batcher is None or not signature.may_batch:
            return self.run(signature.name, inputs)
        return self._batcher.run(
            signature.name, inputs, lambda joined: self.run(signature.name, joined), deadline
        )


class Models:
    """All models of a server.

    Args:
      folders: the folder of each model by its name.
      loader: reads a SavedModel.
      serving: how they are served.
      meters: count the requests.
    """

    def __init__(
        self, folders: Mapping[str, Path], loader: Loader, serving: Serving, meters: Meters
    ) -> None:
        self._meters = meters
        self._versions: dict[str, Versions[ServedModel]] = {}

        def load(name: str) -> Callable[[Path, int], ServedModel]:
            def on_batch(rows: int) -> None:
                meters.note_batch(name, rows)

            def load_version(folder: Path, version: int) -> ServedModel:
                model = ServedModel(folder, version, loader, serving, on_batch)
                try:
                    warm_up(model, folder)
                except BaseException:
                    model.close()
                    raise
                return model

            return load_version

        for name, folder in folders.items():
            self._versions[name] = Versions(name, folder, load(name), serving.kept, serving.period)

    def begin(self) -> None:
        """Loads all models; requests for loaded models are answered meanwhile.

        Raises:
          NoModelError: a folder has no version that can be loaded.
        """
        for versions in self._versions.values():
            versions.begin()

    def predict(
        self,
        asked: Asked,
        read: Callable[[Signature], Mapping[str, np.ndarray]],
        output_filter: Iterable[str] = (),
        deadline: float = float("inf"),
    ) -> Answer:
        """Calls a signature.

        Args:
          asked: the model, version and signature.
          read: returns the inputs of the signature, by name.
          output_filter: the names of the wanted outputs; none for all.
          deadline: the time of `time.monotonic` after which the client does not wait any more.

        Raises:
          CallError: the request does not fit, or the model has raised an error.
        """
        with self._counted(asked, "predict"), self.lease(asked) as model:
            signature = model.signature(asked.signature_name)
            wanted = set(output_filter)
            unknown = sorted(wanted - signature.outputs.keys())
            if unknown:
                raise invalid(
                    f"output tensor alias not found in signature {signature.name!r}: expected some "
                    f"of {sorted(signature.outputs)}, received {unknown}"
                )
            outputs = _call(model, signature, read(signature), deadline)
            if wanted:
                outputs = {name: outputs[name] for name in wanted}
            return Answer(model.version, signature, outputs)

    def infer(
        self, asked: Asked, method: str, examples: Sequence[bytes], deadline: float = float("inf")
    ) -> Answer:
        """Classifies examples, or estimates a number for each.

        Args:
          asked: the model, version and signature.
          method: `CLASSIFY` or `REGRESS`, which the signature must have.
          examples: serialized `tf.train.Example`s, at least one.
          deadline: as for `predict`.

        Raises:
          CallError: as for `predict`.
        """
        kind = _KINDS[method]
        with self._counted(asked, kind), self.lease(asked) as model:
            try:
                signature = model.signature(asked.signature_name)
            except CallError as error:
                # For these methods TensorFlow Serving has another code than for Predict.
                raise invalid(str(error)) from None
            if signature.method != method:
                raise invalid(
                    f"Expected {kind} signature method_name to be {method} but got "
                    f"{signature.method}: signature {signature.name!r} of model {asked.model!r}"
                )
            if not examples:
                raise invalid("Input is empty: expected at least one example")
            if len(signature.inputs) != 1:
                raise invalid(
                    f"signature {signature.name!r}: expected one input, received "
                    f"{sorted(signature.inputs)}"
                )
            (name,) = signature.inputs
            column = np.array(examples, object)
            return Answer(
                model.version, signature, _call(model, signature, {name: column}, deadline)
            )

    def lease(self, asked: Asked) -> contextlib.AbstractContextManager[ServedModel]:
        """Gives a version to a request; raises `CallError` if it is not in memory."""
        if asked.label:
            raise invalid(
                f"Unrecognized servable version label: {asked.label!r}; expected a version number"
            )
        versions = self._versions.get(asked.model)
        if versions is None:
            which = "Latest" if asked.version is None else "Specific"
            number = "" if asked.version is None else f", {asked.version}"
            raise not_found(
                f"Servable not found for request: {which}({asked.model}{number}); available: "
                f"{sorted(self._versions)}"
            )
        return versions.lease(asked.version)

    def states(self, name: str, version: int | None = None) -> list[VersionState]:
        """Returns the states of a model's versions, the newest first.

        Args:
          name: of the model.
          version: only this one; None for all.

        Raises:
          CallError: there is no such model or version.
        """
        if name not in self._versions:
            raise not_found(f"Could not find any versions of model {name}")
        states = self._versions[name].states()
        if version is None:
            return states
        found = [state for state in states if state.version == version]
        if not found:
            raise not_found(f"Could not find version {version} of model {name}")
        return found

    def names(self) -> list[str]:
        """Returns the names of all models."""
        return list(self._versions)

    def close(self) -> None:
        """Frees all models; no new request may come."""
        for versions in self._versions.values():
            versions.close()

    @contextlib.contextmanager
    def _counted(self, asked: Asked, method: str) -> Iterator[None]:
        """Counts a request, and makes each exception a `CallError`."""
        # Names that clients think of are no labels: there may be any number of them.
        name = asked.model if asked.model in self._versions else ""
        begun = time.perf_counter()
        code = grpc.StatusCode.OK
        try:
            yield
        except Exception as error:
            told = error_of(error)
            code = told.code
            if told.code is grpc.StatusCode.INTERNAL:
                _log.exception("model %r: %s has failed", asked.model, method)
            raise told from None
        finally:
            self._meters.note_request(name, method, code.name, time.perf_counter() - begun)


def _call(
    model: ServedModel, signature: Signature, inputs: Mapping[str, np.ndarray], deadline: float
) -> dict[str, np.ndarray]:
    signature.check(inputs)
    if time.monotonic() >= deadline:
        raise CallError(
            grpc.StatusCode.DEADLINE_EXCEEDED, "the request's deadline ended before its turn"
        )
    return model.answer(signature, inputs, deadline)
