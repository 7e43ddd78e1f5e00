"""Elastic training around the steps: the data, the beginning of `fit`, and the end of an epoch.

Each member reads the same global batches, and maps its rows of them. Before any member calls what
follows the steps of an epoch, all have done all steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.data.cut.ahead import GlobalBatches
from tfdist.data.draws import generators_drawn_later
from tfdist.data.order import order_of_each_process
from tfdist.data.same_draws import go_to_draws_of_first
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.keras.elastic_state import ElasticFit, state_of_newcomer
from tfdist.keras.session.adapter import Distributor, KerasData
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.positions import positions_in
from tfdist.keras.session.session import FitSession, Session
from tfdist.keras.workers import elastic_job_of
from tfdist.ops.collectives.communicator import Communicator
from tfdist.ops.collectives.world import world

_Policy = tf.data.experimental.AutoShardPolicy


class ElasticPart(Participant[Session]):
    """The part of an elastic job in a call."""

    def __init__(self, session: Session, job: ElasticJob) -> None:
        super().__init__(session)
        self._job = job

    @classmethod
    def of(cls, session: Session) -> ElasticPart | None:
        """Returns the participant, if it takes part."""
        job = elastic_job_of(session.strategy)
        return None if job is None else cls(session, job)

    def open_data(
        self, data: KerasData, strategy: tf.distribute.Strategy, make: Callable[[Distributor], None]
    ) -> None:
        """All workers read the same batches; each step cuts them anew."""
        make(WholeBatches(self._job, self.session.strategy))

    def begin_fit(self) -> None:
        """`fit` begins with the state of rank 0, or of the members of a running job."""
        session = self.session
        positions = positions_in(session)
        if isinstance(session, FitSession) and positions is not None and session.data is not None:
            ElasticFit(self._job, positions).begin()

    def around_steps(
        self, steps: contextlib.AbstractContextManager[None], data: KerasData
    ) -> contextlib.AbstractContextManager[None]:
        """No member continues before all have done all steps of an epoch."""
        return _agreed(steps, self._job, data, self.session.keras.reopened_datasets(data))


@dataclasses.dataclass(frozen=True)
class _World:
    """The members' ranks at each execution; equal for the same members."""

    communicator: Communicator

    def __call__(self) -> tuple[tf.Tensor, tf.Tensor]:
        return world(self.communicator)


class WholeBatches:
    """Stands for the strategy where a Keras distributes its data: a step cuts whole batches.

    Args:
      job: the members.
      strategy: of the model.
    """

    def __init__(self, job: ElasticJob, strategy: tf.distribute.Strategy) -> None:
        self._job = job
        self._strategy = strategy

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset) -> GlobalBatches:
        """Returns the dataset, read one batch ahead."""
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (_Policy.AUTO, _Policy.DATA):
            raise ValueError(
                "elastic training: expected a dataset that all workers read whole (AutoShardPolicy "
                f"AUTO or DATA), received {_Policy(policy).name}"
            )
        reasons = order_of_each_process(dataset)
        if reasons:
            raise ValueError(
                "elastic training: expected a dataset that all workers read in the same order, of "
                f"which each takes its share; received one whose order differs: {reasons[0]}. A "
                "seed of shuffle, or keras.utils.set_random_seed before it, makes it the same"
            )
        devices = len(self._strategy.extended.worker_devices)
        return GlobalBatches(dataset, _World(self._job.communicator), devices)

    @staticmethod
    def check(dataset: object) -> None:
        """Raises ValueError if a dataset was distributed before Keras got it."""
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                "elastic training: expected arrays, a tf.data.Dataset, a PyDataset or a Sequence, "
                "received a dataset that is distributed already; pass the dataset itself"
            )


@contextlib.contextmanager
def _agreed(
    steps: contextlib.AbstractContextManager[None],
    job: ElasticJob,
    data: KerasData,
    datasets: Sequence[object],
) -> Iterator[None]:
    """Waits at the end of an epoch's steps until all members have done them.

    After steps of training the members' variables are equal, or the worker ends whose differ.

    Args:
      steps: Keras's context manager around them.
      job: the members.
      data: Keras's iterator.
      datasets: which it opens for each epoch.
    """
    with steps:
        yield

    if state_of_newcomer(job) is not None:
        return  # a callback evaluates before the first step; the members have done so

    state = job.state
    drawn_later = generators_drawn_later(datasets)

    def agree() -> None:
        go_to_draws_of_first(job.communicator, drawn_later)
        if isinstance(state, ElasticFit) and state.compares(data):
            state.compare()
            return
        with tf.device("/device:CPU:0"):
            ops.all_reduce(tf.constant(job.units), job.communicator, "max", label="end of steps")

    job.run(Unit("the end of an epoch's steps", agree))
