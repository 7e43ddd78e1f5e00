#include "core/ps/server/handlers/step_handler.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr int64_t kMaxParkedPulls = 1024;  // of one worker

}  // namespace

uint64_t StepHandler::ClockFor(int worker) const {
  return state_.sync() ? state_.schedule.clock() : state_.schedule.clock_of(worker);
}

void StepHandler::CancelPulls(int worker) {
  parked_.remove_if([worker](const Parked& parked) { return parked.client.worker == worker; });
}

std::optional<Answer> StepHandler::HandlePull(const ClientContext& client, uint64_t id,
                                              const PullRequest& pull) {
  const int rank = client.worker;
  const auto sharing = state_.store->Share();
  Lock lock(state_.mutex);
  const auto parked = std::count_if(parked_.begin(), parked_.end(), [rank](const Parked& parked) {
    return parked.client.worker == rank;
  });
  if (parked >= kMaxParkedPulls) {
    return state_.Refuse(
        client, id,
        Status(StatusCode::kFailedPrecondition,
               StrCat("a pull, while ", parked, " others wait for their answers")));
  }
  if (pull.begins_step) {
    const bool returns = !state_.elastic() && !state_.schedule.is_active(rank);
    const bool waits = std::any_of(parked_.begin(), parked_.end(), [rank](const Parked& parked) {
      return parked.client.worker == rank && parked.pull.begins_step;
    });
    if (waits) {
      return state_.Refuse(
          client, id,
          Status(StatusCode::kFailedPrecondition,
                 "a pull that begins a step, while another one waits for its answer"));
    }
    const bool may_pull = state_.schedule.MayPull(rank, Clock::now());
    if (!may_pull) parked_.push_back({client, id, pull});
    if (!may_pull || returns) state_.Arm(state_.schedule.NextDeadline());
    if (returns) {
      lock.unlock();
      state_.reducer.Reactivate(rank);
      lock.lock();
    }
    if (!may_pull) return std::nullopt;
    trace_.Add(Trace::kPull, rank, ClockFor(rank), state_.schedule.slowest_clock());
  } else if (!state_.schedule.MayRead(rank, Clock::now())) {
    parked_.push_back({client, id, pull});
    state_.Arm(state_.schedule.NextDeadline());
    return std::nullopt;
  }
  const uint64_t clock = ClockFor(rank);
  if (!state_.sync()) lock.unlock();
  return Gather(client, id, pull, clock);
}

Answer StepHandler::Gather(const ClientContext& client, uint64_t id, const PullRequest& pull,
                           uint64_t clock) {
  PullReply reply{clock, {}};
  std::vector<BlockPtr> payload;
  uint64_t bytes = 0;
  reply.versions.reserve(pull.entries.size());
  for (const PullRequest::Entry& entry : pull.entries) {
    Shard* const shard = state_.store->Find(entry.shard);
    if (shard == nullptr) {
      return state_.Refuse(client, id,
                           Status(StatusCode::kInvalidArgument,
                                  StrCat("there is no shard ", entry.shard, " to pull")));
    }
    Lock lock(shard->mutex, std::defer_lock);
    if (!state_.options.hogwild) lock.lock();
    reply.versions.push_back(shard->version);
    if (entry.version != reply.versions.back()) {
      payload.push_back(shard->block);
      bytes += shard->bytes;
    }
    if (pull.begins_step && shard->binding && !shard->seen.empty()) {
      Shard::Seen& seen = shard->seen[client.worker];
      seen.updates = shard->updates;
      if (state_.options.compensation == Compensation::kDcAsgd) seen.block = shard->block;
      if (state_.options.compensation == Compensation::kAdaptiveRevision) {
        seen.block = shard->revision.sum;
      }
    }
    if (bytes > kMaxPayloadBytes) {
      return state_.Refuse(client, id,
                           Status(StatusCode::kInvalidArgument,
                                  StrCat("a pull of more than ", kMaxPayloadBytes, " bytes")));
    }
  }
  ++pulls_;
  return OkAnswer(id, reply, std::move(payload));
}

void StepHandler::Advance(Lock* lock) {
  CloseIfComplete();
  ReleasePulls(lock);
}

void StepHandler::CloseIfComplete() {
  if (!state_.sync() || collecting_ > 0) return;
  if (state_.elastic()) {
    if (!state_.elastic_schedule.StepIsComplete()) return;
    // The members' losses weigh by rows, however many members there are.
    Close(state_.options.schedule.workers);
    state_.elastic_schedule.CloseStep();
  } else if (state_.schedule.StepIsComplete()) {
    Close(state_.schedule.contributions());
  }
}

void StepHandler::Close(int contributions) {
  TaskRecord record;
  const bool is_of_tasks = std::exchange(step_is_of_tasks_, false);
  if (is_of_tasks) {
    state_.store->TryWithReclaim([&] { record.positions = state_.tasks.ApplyCollected(); });
  }
  const NotApplied missed = sums_.Close(contributions, is_of_tasks ? &record : nullptr);
  if (!missed.empty()) state_.Warn(missed.status().message());
  trace_.Add(Trace::kClosed, 0, state_.schedule.clock(), state_.schedule.slowest_clock());
  state_.schedule.CloseStep();
}

bool StepHandler::MayCollect(int worker, const PushRequest& push) {
  if (!state_.elastic()) {
    return state_.schedule.Push(worker, push.clock) != Schedule::Verdict::kDropLate;
  }
  const std::optional<uint64_t> forgotten = state_.elastic_schedule.Supersedes(worker, push.unit);
  if (forgotten && collecting_ > 0) {
    ++foreign_pushes_;
    return false;
  }
  if (forgotten) {
    sums_.Drop();
    state_.Warn(StrCat("parameter server ", state_.options.index, " forgets unit of work ",
                       *forgotten, ", which not all members have committed before unit ",
                       push.unit.number));
  }
  if (!state_.elastic_schedule.Push(worker, push.unit)) {
    ++foreign_pushes_;
    return false;
  }
  state_.schedule.Push(worker, state_.schedule.clock());
  return true;
}

void StepHandler::ReleasePulls(Lock* lock) {
  if (parked_.empty()) return;
  const TimePoint now = Clock::now();
  std::list<Parked> ready;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    const auto next = std::next(parked);
    const int rank = parked->client.worker;
    const bool begins_step = parked->pull.begins_step;
    if (begins_step ? state_.schedule.MayPull(rank, now) : state_.schedule.MayRead(rank, now)) {
      parked->clock = ClockFor(rank);
      if (begins_step) {
        trace_.Add(Trace::kPull, rank, parked->clock, state_.schedule.slowest_clock());
      }
      ready.splice(ready.end(), parked_, parked);
    }
    parked = next;
  }
  state_.Arm(state_.schedule.NextDeadline());
  if (!state_.sync()) lock->unlock();
  for (const Parked& parked : ready) {
    try {
      state_.replies->Deliver(parked.client.session,
                              Gather(parked.client, parked.id, parked.pull, parked.clock));
    } catch (const std::bad_alloc&) {  // the worker connects again and repeats the pull
      state_.replies->Disconnect(parked.client.session);
    }
  }
}

Answer StepHandler::HandlePush(const ClientContext& client, const PushRequest& push,
                               ClientRequest* request) {
  const int rank = client.worker;
  const uint64_t id = request->id;
  WorkerState& worker = state_.WorkerOf(client);
  const auto sharing = state_.store->Share();
  if (Status s = CheckTables(*request, *state_.store); !s.ok()) {
    return state_.Refuse(client, id, s);
  }
  std::vector<Update> updates = UpdatesOf(push, std::move(request->payload), state_.store);
  if (Status s = CheckUpdates(updates); !s.ok()) return state_.Refuse(client, id, s);
  if (Status s = state_.CheckLog(); !s.ok()) return state_.Refuse(client, id, s);
  ReserveMemory(!state_.options.hogwild && state_.options.schedule.mode != Mode::kSync,
                &state_.store->pool(), &updates, &request->table);
  if (!push.of_tasks && !push.commits.empty()) {
    return state_.Refuse(
        client, id,
        Status(StatusCode::kInvalidArgument, "a push of data tasks that does not say so"));
  }
  if (push.of_tasks && state_.elastic()) {
    // The training of a unit could not be undone.
    return state_.Refuse(client, id, InvalidArgument("a push of data tasks in an elastic job"));
  }
  Pusher pusher{static_cast<uint32_t>(rank), 0, push.sequence};
  TaskPositions::Claim tasks;
  {
    Lock lock(state_.mutex);
    if (push.sequence <= worker.sequence) {
      ++repeated_pushes_;
      const bool is_last = push.sequence == worker.sequence;
      return OkAnswer(id, PushReply{is_last && worker.dropped, is_last && worker.refused});
    }
    worker.sequence = push.sequence;
    worker.dropped = worker.refused = false;
    // The records of a push that is dropped are not trained: the worker gives their tasks back.
    const auto drop = [&] {
      worker.dropped = true;
      worker.refused = !push.commits.empty();
      trace_.Add(Trace::kDropped, rank, push.clock, state_.schedule.slowest_clock());
      return OkAnswer(id, PushReply{true, worker.refused});
    };
    if (state_.sync() && push.incarnation != state_.incarnation) {
      ++foreign_pushes_;
      return drop();
    }
    // Its rows and positions are restored from the redo log.
    const bool is_logged = push.sequence <= worker.rows_sequence;
    if (!push.commits.empty() && !is_logged) {
      tasks = state_.tasks.Begin(push.commits);
      if (!tasks.granted()) {
        worker.refused = true;
        ++refused_pushes_;
        state_.schedule.Push(rank, push.clock);
        Advance(&lock);
        return OkAnswer(id, PushReply{false, true});
      }
    }
    if (is_logged && push.of_tasks) {
      updates.clear();
    } else if (is_logged) {
      updates.erase(std::remove_if(updates.begin(), updates.end(),
                                   [](const Update& update) { return update.table != nullptr; }),
                    updates.end());
    }
    pusher.process = worker.rows_process;
    if (!state_.sync()) worker.rows_sequence = std::max(worker.rows_sequence, push.sequence);
    try {
      CheckDisjoint(rank, push);
    } catch (const std::bad_alloc&) {  // the log lacks a line
    }
    if (state_.sync()) {
      if (!MayCollect(rank, push)) return drop();
      trace_.Add(Trace::kPush, rank, push.clock, state_.schedule.slowest_clock());
      ++collecting_;
    }
    ++pushes_;
  }
  TaskRecord record;
  if (!state_.sync()) record.positions = tasks.after();
  const NotApplied missed =
      state_.sync() ? sums_.Collect(rank, std::move(updates))
                    : updater_.Apply(pusher, std::move(updates), push.of_tasks ? &record : nullptr);
  if (state_.sync()) {
    tasks.Collect();
  } else {
    tasks.Commit();
  }
  Lock lock(state_.mutex);
  if (state_.sync()) {
    --collecting_;
    step_is_of_tasks_ |= push.of_tasks;
  } else {
    // After the update: a worker whose pull this allows has to see the pushed values.
    state_.schedule.Push(rank, push.clock);
    trace_.Add(Trace::kPush, rank, state_.schedule.clock_of(rank), state_.schedule.slowest_clock());
  }
  Advance(&lock);
  if (!missed.empty()) return state_.Refuse(client, id, missed.status());
  // This push may have been the first that the redo log could not record.
  if (Status s = state_.CheckLog(); !s.ok()) return state_.Refuse(client, id, s);
  return OkAnswer(id, PushReply{false});
}

void StepHandler::CheckDisjoint(int worker, const PushRequest& push) {
  std::vector<uint32_t> shards;
  for (const PushRequest::Entry& entry : push.entries) {
    // Single elements are left out: counters often have the same name in different programs.
    if (entry.kind != UpdateKind::kTableRows && state_.store->Find(entry.shard)->elements > 1)
      shards.push_back(entry.shard);
  }
  const int other = state_.disjoint_workers.FindDisjointWorker(worker, shards);
  if (other < 0) return;
  state_.AddEvent(
      Server::Event::Kind::kLog, worker,
      StrCat("rank ", worker, " trains '", state_.store->Find(shards.front())->name, "'",
             shards.size() > 1 ? StrCat(" and ", shards.size() - 1, " more shards") : "",
             ", none of which rank ", other,
             " has: names differ where workers do not make the same variables in the same order"));
}

Answer StepHandler::HandleResolve(const ClientContext& client, uint64_t id,
                                  const ResolveRequest& resolve) {
  const auto workers = static_cast<uint32_t>(state_.options.schedule.workers);
  const bool known = std::all_of(resolve.workers.begin(), resolve.workers.end(),
                                 [workers](uint32_t worker) { return worker < workers; });
  if (!state_.elastic() || !known || resolve.workers.empty()) {
    return state_.Refuse(
        client, id,
        InvalidArgument(StrCat("a generation of ", resolve.workers.size(), " members, expected 1 ",
                               "to ", workers, " workers of an elastic job")));
  }
  // No push is being collected then.
  const auto excluding = state_.store->Exclude();
  const Lock lock(state_.mutex);
  const std::optional<uint64_t> open = state_.elastic_schedule.open_unit();
  switch (state_.elastic_schedule.Resolve(resolve)) {
    case ElasticSchedule::Resolution::kRefused:
      return OkAnswer(id, ResolveReply{true, state_.elastic_schedule.generation()});
    case ElasticSchedule::Resolution::kApply:
      Close(state_.options.schedule.workers);
      break;
    case ElasticSchedule::Resolution::kDrop:
      sums_.Drop();
      state_.schedule.DropStep();
      trace_.Add(Trace::kUndone, client.worker, *open, state_.schedule.clock());
      break;
    case ElasticSchedule::Resolution::kNothing:
      break;
  }
  return OkAnswer(id, ResolveReply{false, state_.elastic_schedule.generation()});
}

Answer StepHandler::HandleCommit(const ClientContext& client, uint64_t id,
                                 const CommitRequest& commit) {
  const auto sharing = state_.store->Share();
  Lock lock(state_.mutex);
  const bool lost = !state_.elastic_schedule.Commit(client.worker, commit.unit) && commit.pushed;
  Advance(&lock);
  const bool open = state_.elastic_schedule.IsOpen(client.worker, commit.unit);
  return OkAnswer(id, CommitReply{open, lost});
}

Answer StepHandler::HandleSet(const ClientContext& client, const SetRequest& set,
                              ClientRequest* request) {
  const auto sharing = state_.store->Share();
  for (size_t i = 0; i < set.shards.size(); ++i) {
    const Status s = CheckValue(*state_.store->Find(set.shards[i]), *request->payload[i]);
    if (!s.ok()) return state_.Refuse(client, request->id, s);
  }
  Lock lock(state_.mutex, std::defer_lock);
  if (state_.sync()) lock.lock();  // a pull gets all of the new values or none
  for (size_t i = 0; i < set.shards.size(); ++i) {
    updater_.Assign(state_.store->Find(set.shards[i]), std::move(request->payload[i]));
  }
  if (!lock.owns_lock()) lock.lock();
  ++assignments_;
  return OkAnswer(request->id);
}

Answer StepHandler::HandleExchange(const ClientContext& client, const ExchangeRequest& exchange,
                                   ClientRequest* request) {
  WorkerState& worker = state_.WorkerOf(client);
  const auto sharing = state_.store->Share();
  std::vector<Update> updates(exchange.shards.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    updates[i].kind = UpdateKind::kDelta;
    updates[i].shard = state_.store->Find(exchange.shards[i]);
    updates[i].values = std::move(request->payload[i]);
  }
  if (Status s = CheckUpdates(updates); !s.ok()) return state_.Refuse(client, request->id, s);
  ReserveMemory(!state_.options.hogwild, &state_.store->pool(), &updates, &request->table);
  bool is_repeated = false;
  {
    const Lock lock(state_.mutex);
    const uint64_t process = worker.process.value_or(0);
    is_repeated =
        worker.exchange_process == process && exchange.sequence <= worker.exchange_sequence;
    if (is_repeated) {
      ++repeated_pushes_;
    } else {
      worker.exchange_process = process;
      worker.exchange_sequence = exchange.sequence;
      ++pushes_;
    }
  }
  NotApplied missed;
  std::vector<BlockPtr> moves;
  for (Update& update : updates) {
    // The worker sends a request again whose answer was lost. The shards have moved; it has not.
    const bool done = state_.store->TryWithReclaim(
        [&] { updater_.Attract(update.shard, exchange.alpha, update.values, !is_repeated); });
    if (!done) missed.Add(update);
    moves.push_back(std::move(update.values));
  }
  if (!missed.empty()) return state_.Refuse(client, request->id, missed.status());
  Answer answer = OkAnswer(request->id);
  answer.payload = std::move(moves);
  return answer;
}

void StepHandler::HandleReduce(const ClientContext& client, const ReduceRequest& reduce,
                               ClientRequest* request) {
  state_.reducer.Add(client.session, client.worker, request->id, reduce,
                     std::move(request->payload));
  state_.Arm(state_.reducer.NextDeadline());
}

void StepHandler::AddStats(ServerStats* stats) const {
  stats->pulls = pulls_;
  stats->pushes = pushes_;
  stats->dropped_pushes = state_.schedule.dropped_pushes() + foreign_pushes_;
  stats->repeated_pushes = repeated_pushes_;
  stats->refused_pushes = refused_pushes_;
  stats->assignments = assignments_;
  stats->clock = state_.schedule.clock();
  stats->largest_lead = state_.schedule.largest_lead();
}

}  // namespace tfdist::ps
