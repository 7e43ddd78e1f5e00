"""How a newcomer gets into an elastic job that runs.

It receives the values that the members train later, when the members let it in: `job.py`.
"""

from __future__ import annotations

import logging
import time

from tfdist.control.client import RefusedError, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.elastic.founding import Founding
from tfdist.elastic.peers import CallOver, Peers, member_of
from tfdist.elastic.protocol import messages
from tfdist.elastic.protocol.members import Generation
from tfdist.errors import RendezvousTimeoutError, TfdistError

_log = logging.getLogger("tfdist.elastic")


class Joining:
    """One process's way into the job.

    Args:
      peers: the other processes.
      founding: of the job, which newcomers form again if all members have died.
    """

    def __init__(self, peers: Peers, founding: Founding) -> None:
        self._peers = peers
        self._founding = founding

    def run(self) -> Generation:
        """Waits, as a newcomer, until the members of the job take this process in.

        Raises:
          CallOver: the members have ended the call in which this process waits.
          TfdistError: all members have died, and this process has left out calls that they have
            ended.
          Exception: as for `Membership.form`.
        """
        known = self._peers.others()
        wait = self._peers.wait()  # until a member has reached this process
        target: tuple[str, str] | None = None
        is_reached = True
        seen = time.monotonic()
        while True:
            self._peers.check()
            now = time.monotonic()
            if wait.is_over and not is_reached:
                raise RendezvousTimeoutError(
                    f"{self._wait_in_words(target, is_reached)}, for {self._peers.timeout:g} s; "
                    "expected that address to lead here from the hosts of the members"
                )
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{self._peers.me.name}: no member of the job has answered for "
                    f"{self._peers.timeout:g} s; asked {self._peers.described(known)}"
                )
            if wait.is_log_due():
                words = self._wait_in_words(target, is_reached)
                _log.warning("%s, for %.0f s by now", words, wait.elapsed)
            if target is None:
                known = self._peers.others()
                target = self._a_member(known, now)
                if target is None and self._peers.state.calls_ended:
                    self._check_members_live(seen)
                    self._peers.pause(self._peers.timing.retry)
                elif target is None:
                    # Perhaps all members have died. Then the newcomers form the job again.
                    generation = self._found_again()
                    if generation is not None:
                        return generation
                else:
                    seen = time.monotonic()
                    _log.info("%s", self._wait_in_words(target, is_reached))
                continue
            reply = self._call_as_newcomer(*target)
            status = reply.get("status")
            is_reached = status != "waiting" or reply.get("reached") is True
            if status == "complete":
                return self._peers.received(reply)
            if status == "over":
                raise CallOver
            if status:
                seen = time.monotonic()
            if status == "waiting":
                if is_reached:
                    wait.heard()
            elif status == "redirect":
                # A newcomer is not told its id.
                leader = member_of({**reply["leader"], "process": "unknown"})
                self._peers.names[leader.address] = str(leader)
                if (leader.address, str(leader)) == target:
                    self._peers.pause(self._peers.timing.retry)
                target = leader.address, str(leader)
            else:
                target = None
                self._peers.pause(self._peers.timing.retry)

    def _wait_in_words(self, target: tuple[str, str] | None, is_reached: bool) -> str:
        me = self._peers.me.name
        if target is not None and not is_reached:
            return (
                f"{me}: a newcomer: {target[1]} has not reached this process at "
                f"{self._peers.me.address}"
            )
        if target is None:
            asked = self._peers.described(self._peers.others())
            return f"{me}: a newcomer: looks for a member of the job; asked {asked}"
        return (
            f"{me}: a newcomer: waits at {target[1]} until the members have ended their present "
            "step, or epoch, and take it in"
        )

    def _check_members_live(self, seen: float) -> None:
        """Raises TfdistError if no member has answered for some time.

        This process has the members' state after some calls, and no member has the next record.
        """
        if time.monotonic() > seen + self._peers.timing.grace:
            self._founding.tombstone.check()
            raise TfdistError(
                f"{self._peers.me.name}: a newcomer: no member of the job has answered for "
                f"{self._peers.timing.grace:g} s; asked "
                f"{self._peers.described(self._peers.others())}. This process has left out "
                f"{self._peers.state.calls_ended} calls of fit, evaluate and predict that they "
                "have ended, and cannot begin a job in their middle: start the program again"
            )

    def _found_again(self) -> Generation | None:
        try:
            status, _ = self._founding.take_part(self._peers.timing.probe)
        except RefusedError as error:
            _log.info("%s", error)
            status = "refused"
        if status != "waiting":
            self._peers.pause(self._peers.timing.retry)
        return self._founding.take()

    def _a_member(self, addresses: list[str], since: float) -> tuple[str, str] | None:
        """Asks all addresses; returns address and name of a living member."""
        self._peers.ask(addresses, every=0.0)
        until = since + self._peers.timing.answer
        while True:
            for address in addresses:
                answer = self._peers.probes.answer(address, since)
                if answer is not None and answer.is_member:
                    return address, self._peers.names.get(address, address)
            if not self._peers.probes.under_way(addresses) or time.monotonic() > until:
                return None
            self._peers.pause(self._peers.timing.check)

    def _call_as_newcomer(self, address: str, name: str) -> JsonObject:
        request = self._peers.form_request(self._peers.poll)
        try:
            return self._peers.probes.call(address, name, messages.ELASTIC_FORM, request)
        except UnreachableError:
            return {}
