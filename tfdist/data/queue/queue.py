"""The queue of one data set: the records to be trained, their workers, and the trained ones.

A *task* is a range of records. In each epoch every task is dealt out once:

             ask                 commit of its last record
    TODO ----------> PENDING --------------------------------> DONE
      ^             owner, lease
      |                 |
      +-----------------+  its owner releases it, or dies, or its lease expires: what was committed
      |                    stays so, and the next owner begins there
      v
    PARKED               it was pending when three owners in a row died

A worker owns a task for the time of a *lease*, and renews the lease while it lives. Fast workers
ask more often and so take more. Records are committed once they are trained, in order within a
task: by the worker's report, or, with parameter servers, by the push that trains them
(`positions`).

Order: tasks are dealt in the order of the data, or shuffled by seed and epoch. A task that was
released comes back first. A task whose owner has died comes back last: if its records were the
cause, the others are trained before it kills again. Only a death without any commit since the one
before counts as "in a row", and a parked task stays parked in later epochs.

The end of an epoch: with nothing left to deal, a worker may be told to wait until the others have
committed, because one of them might die. It does not wait for a worker that waits itself: such a
worker has read all it owns, and trains the rest when its epoch has ended. Nor does it wait for
longer than a lease without any progress of the others. Records that come back after the end are
dealt first in the next epoch.

The end of the last epoch (`end`): nothing deals out what comes back later, so a worker that has
trained all it has read asks whether all tasks are done. It waits for pending tasks, and takes the
tasks that have come back. Only what an owner leaves out on purpose, such as the rest of a dropped
batch, is not waited for. `lost` names the tasks that are not trained in the end, against the job's
intention.

This module has no clock, no threads and no networking; times are arguments.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from collections.abc import Container, Iterable, Mapping, Sequence

from tfdist.control.encoding import JsonObject
from tfdist.data.queue.positions import LeasePositions, TaskPositions

MAX_DEATHS = 3
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The records that a queue deals out.

    Args:
      sizes: the number of records of each task, in the order of the data.
      epochs: how often each task is dealt; `None`: for ever.
      shuffle: whether each epoch has its own order of tasks.
      seed: of that order.
      lease: seconds for which an owner may be silent.
    """

    sizes: tuple[int, ...]
    epochs: int | None
    shuffle: bool
    seed: int
    lease: float


@dataclasses.dataclass
class Item:
    """One task in one epoch, from its first dealing to its end.

    Attributes:
      epoch: the epoch, from 0.
      task: the task's index in the plan.
      done: how many of its records are committed.
      deaths: how many owners in a row have died.
      after: the first epoch in which it may be dealt again.
      given: 1 if its last owner did not want to train it, else 0.
    """

    epoch: int
    task: int
    done: int = 0
    deaths: int = 0
    after: int = 0
    given: int = 0


@dataclasses.dataclass
class Lease:
    """A pending task.

    Attributes:
      id: unique among all leases.
      item: the task.
      rank, process: the owner.
      since: when it was dealt, in seconds.
      moved: when the owner has last committed records of it, or got it.
      expires: when the owner loses it.
    """

    id: int
    item: Item
    rank: int
    process: str
    since: float
    moved: float
    expires: float


@dataclasses.dataclass(frozen=True)
class Grant:
    """A task for a worker.

    Attributes:
      lease: the lease's id.
      epoch, task: as in `Item`.
      first: the first record that is still to be trained; 0 is the task's first.
      size: the number of the task's records.
    """

    lease: int
    epoch: int
    task: int
    first: int
    size: int


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Nothing is left to deal, but these other workers own tasks that may come back."""

    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Ended:
    """Nothing is left to deal in this epoch."""


@dataclasses.dataclass(frozen=True)
class Returned:
    """Tasks of this epoch have come back, and can be dealt."""


@dataclasses.dataclass(frozen=True)
class QueueEvent:
    """Something that the log should tell.

    Attributes:
      kind: "died" or "expired": its owner has lost the task; "parked": and it is not dealt again.
      item: the task, as it is afterwards.
      rank: the owner.
    """

    kind: str
    item: Item
    rank: int


@dataclasses.dataclass(frozen=True)
class Counts:
    """A queue's numbers.

    Attributes:
      epoch: the epoch that is dealt now.
      tasks: of one epoch.
      done: tasks of this epoch.
      todo: tasks that can be dealt now: the rest of this epoch, and what came back of earlier ones.
      records: committed records, of all epochs.
      left: records that are neither committed nor parked, of this epoch and earlier ones.
    """

    epoch: int
    tasks: int
    done: int
    todo: int
    records: int
    left: int


class TaskQueue:
    """The tasks of one data set.

    Args:
      plan: the records that it deals out.
      first_lease: the id of the first lease. A queue that takes the place of another one must use
        other ids.
      positions: of its tasks.
      name: of the queue and its data, among the names of `positions`.
    """

    def __init__(
        self,
        plan: EpochPlan,
        first_lease: int = 0,
        positions: TaskPositions | None = None,
        name: str = "",
    ) -> None:
        self.plan = plan
        self._positions = LeasePositions() if positions is None else positions
        self._name = name
        self._first_unsaved = 0  # the first epoch of which `state` had tasks that were not done
        self.epoch = 0
        self.leases: dict[int, Lease] = {}
        self.parked: dict[int, Item] = {}
        self.fits: list[int] = []  # the first epoch of each `fit`
        self.events: list[QueueEvent] = []  # the caller takes them out
        self.records = 0
        self._next_lease = first_lease
        self._is_new = True  # it has dealt out nothing
        self._order = self._order_of(0)
        self._position = 0  # in the order: how many tasks of this epoch were dealt
        self._returned: list[Item] = []  # sorted by `_order`
        self._processes: dict[int, str] = {}
        self._failed: dict[int, str] = {}  # by rank, the process that has given back its tasks
        self._drained: dict[int, int] = {}  # by rank, the epoch in which it found nothing more
        # By lease, the owner that has ended its task, until a report of it has the lease no more.
        self._done: dict[int, str] = {}

    def begin_epoch(self, ended: int) -> int | None:
        """Returns the epoch that a worker begins.

        Args:
          ended: the last epoch that it has ended; -1 if none.

        Returns:
          The current epoch, or the next one if the worker has ended this one; `None` if that would
          be one too many.
        """
        epoch = max(self.epoch, ended + 1)
        if self.plan.epochs is None or epoch < self.plan.epochs:
            return epoch
        # Tasks may have come back since the last epoch ended.
        last = self.plan.epochs - 1
        return last if any(item.after <= last for item in self._returned) else None

    def begin_fit(self, number: int, ended: int) -> int:
        """Returns the first epoch of a training that all workers begin, each in its own time.

        Args:
          number: how many trainings this worker has begun, with this one. A worker that is started
            again counts from 1.
          ended: as for `begin_epoch`.
        """
        while len(self.fits) < number:
            self.fits.append(max(self.epoch, ended + 1))
        return self.fits[number - 1]

    def ask(
        self, rank: int, process: str, epoch: int, now: float, *, waits: bool
    ) -> Grant | Waiting | Ended:
        """Deals out a task.

        Args:
          rank: the worker's rank.
          process: unique among all processes; a new one takes the place of the rank's former one,
            which has died.
          epoch: the worker's epoch; it gets tasks of this one and of earlier ones.
          now: the time, in seconds.
          waits: whether the worker can wait for others at the end of an epoch. Workers that make
            their steps together cannot.
        """
        if self._failed.get(rank) == process:
            return Ended()  # its input pipeline still asks while it dies
        self.renew(rank, process, now)
        self.expire(now)
        if self._is_new:
            # Where a worker knows of earlier epochs, a queue has been lost whose place this takes.
            self.epoch, self._order = epoch, self._order_of(epoch)
        item = self._take(epoch)
        self._is_new = False
        while item is not None:
            lease = Lease(
                self._next_lease, item, rank, process, now, now, expires=now + self.plan.lease
            )
            self._next_lease += 1
            self.leases[lease.id] = lease
            task = self._name_of_task(item.epoch, item.task)
            size = self.plan.sizes[item.task]
            if not self._move(lease, self._positions.open(lease.id, task, item.done), now):
                item.after = item.given = 0
                self._drained.pop(rank, None)
                return Grant(lease.id, item.epoch, item.task, item.done, size)
            # Trained already, before this process was started again.
            self._end(lease)
            item = self._take(epoch)
        self._drained[rank] = epoch
        others = self._others(rank, epoch, now) if waits else ()
        return Waiting(others) if others else Ended()

    def end(
        self, rank: int, process: str, epoch: int, now: float, *, idle: bool, waits: bool
    ) -> Returned | Waiting | Ended:
        """Says whether all tasks of the last epoch, and of earlier ones, are done.

        Args:
          rank, process, now: as for `ask`.
          epoch: the last one.
          idle: whether the worker trains nothing more of its records. It leaves out the rest.
          waits: whether it waits for the tasks of other workers as well as for its own.

        Returns:
          `Returned` only if this worker itself has no task left: the next pass of its input begins.
        """
        self.renew(rank, process, now)
        self.expire(now)
        for lease in list(self.leases.values()):
            if self._move(lease, self._positions.advance(lease.id), now):
                self._end(lease)
        own = [lease for lease in self._pending(epoch) if lease.process == process]
        if idle:
            for lease in own:
                lease.item.after = epoch + 1
            self._return(own, "released")
            own = []
        if not own and self._can_deal(epoch):
            return Returned()
        pending = self._pending(epoch) if waits else own
        ranks = tuple(sorted({lease.rank for lease in pending}))
        return Waiting(ranks) if ranks else Ended()

    def _pending(self, epoch: int) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.item.epoch <= epoch]

    def _can_deal(self, epoch: int) -> bool:
        """Whether there is a task of `epoch` or of one before to deal now."""
        is_dealt = self.epoch > epoch or (self.epoch == epoch and self._is_dealt())
        return not is_dealt or any(
            item.epoch <= epoch and item.after <= epoch for item in self._returned
        )

    def _is_dealt(self) -> bool:
        """Whether all tasks of the current epoch were dealt once."""
        return all(task in self.parked for task in self._order[self._position :])

    def lost(self) -> list[Item]:
        """Returns the tasks that are not done and that no worker has left out on purpose.

        Only tasks of epochs of which all tasks were dealt: a training may end within an epoch.
        """
        returned = [item for item in self._returned if not item.given]
        undone = [*(lease.item for lease in self.leases.values()), *returned]
        return [item for item in undone if item.epoch < self.epoch or self._is_dealt()]

    def renew(self, rank: int, process: str, now: float) -> None:
        """Records that a worker lives: its leases begin again."""
        before = self._processes.get(rank)
        if before != process:
            self._processes[rank] = process
            self._drained.pop(rank, None)
            if before is not None:
                self._return([x for x in self.leases.values() if x.process == before], "died")
                self.forget(before, ())
        for lease in self.leases.values():
            if lease.process == process:
                lease.expires = now + self.plan.lease

    def commit(self, lease_id: int, process: str, upto: int, now: float) -> bool:
        """Records that the first `upto` records of a task are trained, or more if pushes say so.

        Returns:
          Whether the worker still owned the task, or has ended it; if not, nothing is recorded.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            # Its last push may have come before it knew, and a report may come twice.
            return self._done.get(lease_id) == process
        if lease.process != process:
            return False
        upto = min(upto, self.plan.sizes[lease.item.task])
        if self._move(lease, self._positions.advance(lease_id, upto), now):
            self._end(lease)
        return True

    def _move(self, lease: Lease, position: int, now: float | None = None) -> bool:
        """Sets a task to its position; returns whether it is done."""
        item = lease.item
        if position > item.done:
            self.records += position - item.done
            item.done, item.deaths = position, 0
            lease.moved = lease.moved if now is None else now
        return item.done >= self.plan.sizes[item.task]

    def _end(self, lease: Lease) -> bool:
        """Ends a lease; returns whether its task is done."""
        del self.leases[lease.id]
        is_done = self._move(lease, self._positions.close(lease.id))
        if is_done:
            self._done[lease.id] = lease.process
        return is_done

    def _name_of_task(self, epoch: int, task: int | None = None) -> str:
        """The name of a task among the positions; without a task, a name before its epoch's."""
        name = f"{self._name}/{epoch:010}"  # sorted like the numbers
        return name if task is None else f"{name}/{task:010}"

    def refresh(self, now: float) -> None:
        """Asks where the pending tasks stand."""
        for lease in self.leases.values():
            self._move(lease, self._positions.advance(lease.id), now)

    def saved(self) -> None:
        """The last `state` is in a checkpoint, and positions of older epochs have no use left."""
        self._positions.forget(f"{self._name}/", self._name_of_task(self._first_unsaved))

    def forget(self, process: str, held: Container[int]) -> None:
        """Forgets the ended leases of a process except the leases that it still reports."""
        for lease in [i for i, owner in self._done.items() if owner == process and i not in held]:
            del self._done[lease]

    def release(
        self, process: str, lease_ids: Iterable[int], *, failed: bool, refused: bool = False
    ) -> None:
        """Gives back tasks.

        Args:
          process: the owner.
          lease_ids: of the tasks; unknown ones are ignored.
          failed: whether the owner dies, perhaps of one of them.
          refused: whether it gives them back because a push of theirs was refused.
        """
        if failed:
            self._failed |= {
                rank: each for rank, each in self._processes.items() if each == process
            }
        found = [self.leases[i] for i in lease_ids if i in self.leases]
        kind = "died" if failed else "refused" if refused else "released"
        self._return([x for x in found if x.process == process], kind)

    def expire(self, now: float) -> None:
        """Takes back tasks whose owners have been silent for too long."""
        expired = [lease for lease in self.leases.values() if lease.expires <= now]
        for lease in expired:
            self._drained.pop(lease.rank, None)
        self._return(expired, "expired")

    def counts(self) -> Counts:
        """Returns the queue's numbers; takes time in proportion to the tasks."""
        undone = [*(x.item for x in self.leases.values()), *self._returned]
        dealt, fresh = self._order[: self._position], self._order[self._position :]
        fresh = [task for task in fresh if task not in self.parked]
        of_this_epoch = {item.task for item in undone if item.epoch == self.epoch}
        sizes = self.plan.sizes
        return Counts(
            epoch=self.epoch,
            tasks=len(self._order),
            done=sum(task not in of_this_epoch and task not in self.parked for task in dealt),
            todo=len(fresh) + len(self._returned),
            records=self.records,
            left=sum(sizes[task] for task in fresh)
            + sum(sizes[item.task] - item.done for item in undone),
        )

    def returned(self) -> list[Item]:
        """Returns the tasks that have come back and were not dealt again yet."""
        return list(self._returned)

    def state(self) -> JsonObject:
        """Returns what `restore` needs: a JSON object. Tasks that are pending become TODO in it."""
        undone = [*(lease.item for lease in self.leases.values()), *self._returned]
        self._first_unsaved = min([self.epoch, *(item.epoch for item in undone)])
        return {
            "format": _FORMAT,
            "epoch": self.epoch,
            "position": self._position,
            "records": self.records,
            "fits": list(self.fits),
            "returned": [dataclasses.astuple(item) for item in undone],
            "parked": [dataclasses.astuple(item) for item in self.parked.values()],
        }

    def restore(self, state: JsonObject, positions: Mapping[str, int] | None = None) -> None:
        """Takes up a state; all leases end.

        Args:
          state: from `state`.
          positions: the positions of tasks, by name, that were saved after `state`, and are
            restored too; `None`: they go back to `state`.

        Raises:
          ValueError: the state is not one of this queue's plan.
        """
        tasks = range(len(self.plan.sizes))
        try:
            if state["format"] != _FORMAT:
                raise ValueError(f"expected format {_FORMAT}, received {state['format']!r}")
            epoch, position, records = (
                _number(state[name], name) for name in ("epoch", "position", "records")
            )
            fits = [_number(first, "fits") for first in state["fits"]]
            returned, parked = (
                [Item(*(_number(value, name) for value in item)) for item in state[name]]
                for name in ("returned", "parked")
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a queue's state: {error!r}") from None
        for item in (*returned, *parked):
            if item.task not in tasks or item.done > self.plan.sizes[item.task]:
                raise ValueError(f"there is no record {item.done} of task {item.task}")
        if position > len(tasks):
            raise ValueError(f"expected at most {len(tasks)} tasks, received {position}")
        for lease in list(self.leases.values()):
            self._end(lease)
        self.epoch, self._position, self.records, self.fits = epoch, position, records, fits
        self._order = self._order_of(epoch)
        self.parked = {item.task: item for item in parked}
        if positions is None:
            self._positions.forget(f"{self._name}/", f"{self._name}/~")  # behind all digits
        else:
            returned = self._reconciled(returned, positions)
        self._returned = sorted(returned, key=_order)
        self._is_new = False
        self._processes.clear()
        self._drained.clear()

    def _reconciled(self, returned: list[Item], positions: Mapping[str, int]) -> list[Item]:
        """Returns the tasks that are to be dealt again, where saved positions are behind.

        A position is final when a push is collected, and saved when its step is applied.
        """
        known = {(item.epoch, item.task) for item in returned}
        for item in returned:
            saved = positions.get(self._name_of_task(item.epoch, item.task), item.done)
            item.done = min(item.done, saved)
        dealt = set(self._order[: self._position])
        for name, trained in positions.items():
            owner, _, task = name.rpartition("/")
            owner, _, epoch = owner.rpartition("/")
            if owner != self._name or not (epoch.isdigit() and task.isdigit()):
                continue
            item = Item(int(epoch), int(task), trained)
            if item.task >= len(self.plan.sizes) or trained >= self.plan.sizes[item.task]:
                continue
            is_dealt = item.epoch < self.epoch or (item.epoch == self.epoch and item.task in dealt)
            is_known = (item.epoch, item.task) in known or item.task in self.parked
            if is_dealt and not is_known:
                returned.append(item)
        return returned

    def _order_of(self, epoch: int) -> Sequence[int]:
        order = range(len(self.plan.sizes))
        if not self.plan.shuffle:
            return order
        # By a text, which hashes the same in all releases and processes.
        return random.Random(f"{self.plan.seed} {epoch}").sample(order, len(order))

    def _take(self, epoch: int) -> Item | None:
        """Returns the next task of `epoch` or of one before."""
        for i, item in enumerate(self._returned):
            if item.deaths:
                break
            if item.epoch <= epoch and item.after <= epoch:
                return self._returned.pop(i)
        while self.epoch <= epoch and len(self.parked) < len(self.plan.sizes):
            if self._position < len(self._order):
                self._position += 1
                task = self._order[self._position - 1]
                if task not in self.parked:
                    return Item(self.epoch, task)
            elif self.epoch == epoch:
                break
            else:
                self.epoch += 1
                self._position = 0
                self._order = self._order_of(self.epoch)
        for i, item in enumerate(self._returned):
            if item.epoch <= epoch and item.after <= epoch:
                return self._returned.pop(i)
        return None

    def _others(self, rank: int, epoch: int, now: float) -> tuple[int, ...]:
        """Returns the other workers whose tasks may come back before they have ended the epoch."""
        found = {
            lease.rank
            for lease in self.leases.values()
            if lease.rank != rank
            and lease.item.epoch <= epoch
            and self._drained.get(lease.rank, -1) < lease.item.epoch
            and now < lease.moved + self.plan.lease
        }
        return tuple(sorted(found))

    def _return(self, leases: Iterable[Lease], kind: str) -> None:
        for lease in leases:
            if self._end(lease):
                continue
            item = lease.item
            item.given = int(kind == "released")
            if kind in ("released", "refused"):
                self._put_back(item)
                continue
            item.deaths += 1
            is_parked = item.deaths >= MAX_DEATHS
            if is_parked:
                self.parked[item.task] = item
            else:
                self._put_back(item)
            event = QueueEvent(
                "parked" if is_parked else kind, dataclasses.replace(item), lease.rank
            )
            self.events.append(event)

    def _put_back(self, item: Item) -> None:
        if item.task in self.parked:
            return  # parked in another epoch
        if item.deaths:
            # Of the tasks of one dead owner the first was probably in training: it comes after the
            # others, so that these are not with it at the next death.
            index = bisect.bisect_left(self._returned, item.deaths, key=lambda x: x.deaths)
            self._returned.insert(index, item)
        else:
            bisect.insort(self._returned, item, key=_order)


def _order(item: Item) -> tuple[int, int, int]:
    """Sorts tasks that have come back: by deaths, tasks without any in the order of the data."""
    return (item.deaths, 0, 0) if item.deaths else (0, item.epoch, item.task)


def _number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: expected a whole number, received {value!r:.50}")
    return value
