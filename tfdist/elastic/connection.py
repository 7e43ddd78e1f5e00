"""Round 2 of a generation: its data addresses, and the connections of the data plane."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator

import tensorflow as tf

from tfdist.control.client import RefusedError, UnreachableError
from tfdist.control.signing import data_key
from tfdist.control.waiting import Wait
from tfdist.elastic.peers import Again, Peers, listed
from tfdist.elastic.protocol import messages
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.errors import AuthenticationError, ClusterConfigError
from tfdist.ops import Communicator

_log = logging.getLogger("tfdist.elastic")


class Connection:
    """Connects a communicator among the members of a generation.

    Args:
      peers: the other processes.
      secret: the shared secret or None.
      host: the host at which this process accepts data connections.
    """

    def __init__(self, peers: Peers, secret: bytes | None, host: str) -> None:
        self._host = host
        self._peers = peers
        self._secret = secret

    def run(self, communicator: Communicator, generation: Generation, wait: Wait) -> None:
        """Exchanges the members' data addresses and connects the communicator.

        Args:
          communicator: is given the ranks of the generation.
          generation: the result of round 1.
          wait: for the other members; at least the grace period is left to them.

        Raises:
          Again: a member has died, or has given the generation up.

        Raises also the errors of `Membership.form`.
        """
        for member in generation.members:
            # They have called the leader a moment ago.
            self._peers.probes.heard_from(member.address)
        communicator.reconfigure(generation.rank(self._peers.me.process), len(generation.members))
        own = f"{self._host}:{communicator.port}"
        wait = self._peers.wait(max(wait.remaining, self._peers.timing.grace))
        if generation.members[0] == self._peers.me:
            addresses = self._collect_addresses(generation, own, wait)
        else:
            addresses = self._ask_for_addresses(generation, own, wait)
        key = data_key(self._secret, generation.job, str(generation.number), generation.salt)
        with self._ending_attempt(communicator, generation):
            try:
                communicator.connect(
                    key,
                    generation.number,
                    addresses,
                    max(1.0, wait.remaining),
                    [member.name for member in generation.members],
                )
            except tf.errors.OpError as error:
                raise Again(
                    f"generation {generation.number} could not connect: {error.message}"
                ) from None

    def _collect_addresses(self, generation: Generation, own: str, wait: Wait) -> list[str]:
        """Returns the data addresses of the generation that this process leads."""
        state, timing = self._peers.state, self._peers.timing
        state.set_address(generation, own)
        began = time.monotonic()
        while True:
            self._peers.check()
            changes = state.changes
            addresses = state.addresses(generation)
            if addresses is not None:
                return addresses
            missing = state.missing_addresses(generation)
            if missing is None:
                raise Again(f"generation {generation.number} was given up by a member")
            why = self._why_lost(generation, missing, began)
            if why or wait.is_over:
                raise Again(why or f"no data address came from {listed(missing)}")
            if wait.is_log_due():
                _log.warning("%s: round 2 waits for %s", self._peers.me.name, listed(missing))
            state.wait(timing.check, changes)

    def _ask_for_addresses(self, generation: Generation, own: str, wait: Wait) -> list[str]:
        leader = generation.members[0]
        while True:
            self._peers.check()
            if wait.is_over:
                raise Again(f"no data addresses came from {leader}")
            request = messages.ElasticAddressRequest(
                process=self._peers.me.process,
                mark=generation.mark,
                description=self._peers.state.description,
                data_address=own,
                nonce="",
                proof="",
                wait=wait.poll(),
            )
            try:
                answer = self._peers.probes.call_member(leader, messages.ELASTIC_ADDRESS, request)
            except (UnreachableError, AuthenticationError, ClusterConfigError) as error:
                if isinstance(error, RefusedError) and not self._peers.has_ended(leader):
                    raise
                raise Again(f"{leader} in round 2: {error}") from None
            if answer.get("status") == "complete":
                return [str(address) for address in answer["addresses"]]
            if answer.get("status") != "waiting":
                raise Again(f"{leader} has given up generation {generation.number}")

    @contextlib.contextmanager
    def _ending_attempt(self, communicator: Communicator, generation: Generation) -> Iterator[None]:
        """While connecting: ends the attempt if a member dies or has given it up."""
        done = threading.Event()
        others = [member for member in generation.members if member != self._peers.me]

        def look() -> None:
            began = time.monotonic()
            while not done.wait(5 * self._peers.timing.check):
                why = self._why_lost(generation, others, began)
                if self._peers.closed.is_set():
                    why = "this process leaves"
                if why:
                    communicator.abort(why)
                    return

        watcher = threading.Thread(target=look, name="tfdist-elastic-connect", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _why_lost(
        self, generation: Generation, members: Iterable[Member], began: float
    ) -> str | None:
        """Why a generation cannot be connected any more, or None."""
        members = list(members)
        for member in members:
            if self._peers.has_ended(member):
                return f"{member} has ended: {self._peers.state.dead[member.process]}"
        self._peers.ask([member.address for member in members], every=self._peers.timing.probe)
        for member in members:
            answer = self._peers.answer_of(member, began)
            if answer is not None and answer.ended >= generation.number:
                return f"{member} has given up generation {generation.number}"
            if self._peers.probes.silent_for(member.address) >= self._peers.timing.grace:
                return f"{member} does not answer"
        return None
