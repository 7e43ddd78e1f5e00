#include "core/ps/server/service.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/math/cast16.h"
#include "core/ps/table/table_batch.h"

namespace tfdist::ps {
Service::Service(const ServerOptions& options, uint64_t incarnation, Store* store, Outlet* outlet)
    : options_(options),
      incarnation_(incarnation),
      store_(store),
      outlet_(outlet),
      log_([this](const Status& failure) {
        Tell(Server::Event::Kind::kLog, -1,
             StrCat(failure.message(), "; until a snapshot is written, ",
                    options_.refuse_unlogged ? "pushes are refused"
                                             : "what changes rows is lost with this process"));
      }),
      updater_(options_, store, &log_),
      sums_(options.schedule.workers, &updater_, store, &log_),
      reducer_(
          options.schedule.workers,
          [this](int worker) {
            const Lock lock(schedule_mutex_);
            return schedule_.is_active(worker);
          },
          [this](int worker) {
            const Lock lock(schedule_mutex_);
            return Seconds(workers_[worker]->came ? options_.schedule.worker_timeout_seconds
                                                  : options_.schedule.start_timeout_seconds);
          },
          [this](uint64_t session, Answer answer) { outlet_->Deliver(session, std::move(answer)); },
          [this](uint64_t session) { outlet_->Disconnect(session); }),
      trace_(options.trace_events),
      schedule_(options.schedule, Clock::now()) {
  for (int i = 0; i < options.schedule.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>());
  }
}

std::optional<Answer> Service::Execute(Caller* caller, Incoming request) {
  const std::lock_guard<std::mutex> busy(workers_[caller->worker]->busy);
  if (!std::holds_alternative<OpenRequest>(request.body) && !IsCurrent(*caller)) {
    return std::nullopt;
  }
  if (!request.refusal.ok()) return Refuse(*caller, request.number, request.refusal);
  try {
    return std::visit([&](const auto& body) { return Do(caller, request.number, body, &request); },
                      request.body);
  } catch (const std::bad_alloc& error) {
    return RefuseForMemory(*caller, request, error);
  } catch (const std::length_error&) {  // more than a container can hold
    return RefuseForMemory(*caller, request, std::bad_alloc());
  }
}

Answer Service::RefuseForMemory(const Caller& caller, const Incoming& request,
                                const std::bad_alloc& error) const {
  store_->memory().Reclaim();  // the answer needs some too
  const auto sharing = store_->Share();
  return Refuse(caller, request.number, OutOfMemory(request, *store_, error));
}

bool Service::IsCurrent(const Caller& caller) {
  const Lock lock(schedule_mutex_);
  return workers_[caller.worker]->session == caller.session;
}

Answer Service::Refuse(const Caller& caller, uint64_t number, const Status& status) const {
  return ErrorAnswer(
      number, Status(status.code(),
                     StrCat("parameter server ", options_.index, ", asked by ",
                            options_.schedule.NameOf(caller.worker), ": ", status.message())));
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const OpenRequest& open,
                                  Incoming*) {
  const int rank = caller->worker;
  Worker& worker = *workers_[rank];
  uint64_t former = 0;
  bool new_process = false;
  OpenReply reply{incarnation_, 0};
  {
    const auto sharing = store_->Share();
    Lock lock(schedule_mutex_);
    if (worker.session > caller->session) {  // overtaken by a connection that was made later
      outlet_->Disconnect(caller->session);
      return std::nullopt;
    }
    former = std::exchange(worker.session, caller->session);
    parked_.remove_if([rank](const Parked& parked) { return parked.caller.worker == rank; });
    new_process = worker.process != open.process;
    if (new_process) {
      worker.process = open.process;
      worker.sequence = 0;
      worker.dropped = false;
    }
    if (worker.rows_process != open.process) {
      worker.rows_process = open.process;
      worker.rows_sequence = 0;
    }
    if (worker.edit_process != open.process) {
      worker.edit_process = open.process;
      worker.edit_sequence = 0;
    }
    worker.came = true;
    worker.left = false;
    if (new_process || !worker.present) Tell(Server::Event::Kind::kCame, rank, "");
    worker.present = true;
    schedule_.Join(rank, new_process);
    reply.clock = ClockFor(rank);
    CloseIfComplete();
    Release(&lock);
    if (new_process) ForgetPulled(rank);
  }
  if (new_process) reducer_.ProcessEnded(rank);
  if (former != 0) outlet_->Disconnect(former);
  caller->opened = true;
  return OkAnswer(number, reply);
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const CreateRequest& create,
                                  Incoming* request) {
  CreateReply reply;
  const Status status = store_->Create(create, request->payload, &reply);
  if (!status.ok()) return Refuse(*caller, number, status);
  std::vector<uint32_t> known = reply.shards;
  known.erase(std::remove(known.begin(), known.end(), kNoShard), known.end());
  const Lock lock(schedule_mutex_);
  acquaintance_.Knows(caller->worker, known);
  return OkAnswer(number, reply);
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const BindRequest& bind,
                                  Incoming*) {
  std::string replaced;
  const Status status = store_->Bind(bind, &replaced);
  if (!status.ok()) return Refuse(*caller, number, status);
  if (!replaced.empty()) {
    Tell(Server::Event::Kind::kLog, -1,
         StrCat(options_.schedule.NameOf(caller->worker), " has replaced the optimizer of ",
                replaced, ": all workers should train with the same one"));
  }
  return OkAnswer(number);
}

std::optional<Answer> Service::Do(Caller*, uint64_t number, const SetRequest& set,
                                  Incoming* request) {
  const auto sharing = store_->Share();
  Lock lock(schedule_mutex_, std::defer_lock);
  if (sync()) lock.lock();  // a pull gets all of it or nothing
  for (size_t i = 0; i < set.shards.size(); ++i) {
    updater_.Assign(store_->Find(set.shards[i]), std::move(request->payload[i]));
  }
  return OkAnswer(number);
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const ReduceRequest& reduce,
                                  Incoming* request) {
  reducer_.Add(caller->session, caller->worker, number, reduce, std::move(request->payload));
  Arm(reducer_.NextDeadline());
  return std::nullopt;
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const TableRequest& tables,
                                  Incoming*) {
  TableReply reply;
  std::vector<std::shared_ptr<Table>> replaced;
  const Status status = store_->CreateTables(tables, &reply, &replaced);
  if (!status.ok()) return Refuse(*caller, number, status);
  for (const auto& table : replaced) {
    log_.Forget(table.get());
    Warn(StrCat("table '", table->name(), "' keeps the values of its checkpoint; its slots, ",
                SlotsText(table->config()), ", are left out, as ",
                options_.schedule.NameOf(caller->worker), " asks"));
  }
  return OkAnswer(number, reply);
}

std::optional<Answer> Service::Do(Caller*, uint64_t number, const LookupRequest& lookup,
                                  Incoming* request) {
  const auto sharing = store_->Share();
  const double now = store_->clock().Now();
  Answer answer = OkAnswer(number);
  // All that needs memory comes first: a lookup makes all of its rows or none.
  answer.payload.reserve(lookup.entries.size());
  std::vector<std::unique_ptr<TableBatch>> batches;
  batches.reserve(lookup.entries.size());
  size_t most_to_narrow = 0;
  for (size_t i = 0; i < lookup.entries.size(); ++i) {
    const LookupRequest::Entry& entry = lookup.entries[i];
    Table* const table = store_->FindTable(entry.table);
    request->table = &table->name();
    batches.push_back(
        table->Prepare(reinterpret_cast<const int64_t*>(request->payload[i]->data()), entry.count,
                       lookup.training ? Table::OnMissing::kAdmit : Table::OnMissing::kIgnore,
                       /*within_budget=*/true));
    const size_t elements = entry.count * table->config().width;
    answer.payload.push_back(store_->pool().AllocateAtLeast(elements * ByteSize(entry.wire)));
    if (entry.wire != DType::kFloat32) most_to_narrow = std::max(most_to_narrow, elements);
  }
  const BlockPtr wide = store_->pool().AllocateAtLeast(most_to_narrow * sizeof(float));
  for (size_t i = 0; i < lookup.entries.size(); ++i) {
    const LookupRequest::Entry& entry = lookup.entries[i];
    Table* const table = store_->FindTable(entry.table);
    Block* const out = answer.payload[i].get();
    const bool narrows = entry.wire != DType::kFloat32;
    auto* const rows = reinterpret_cast<float*>(narrows ? wide->data() : out->data());
    table->Lookup(now, *batches[i], lookup.training, rows);
    if (narrows) {
      CastFromFloat32(entry.wire, rows, out->data(), entry.count * table->config().width);
    }
  }
  return answer;
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const LeaveRequest&, Incoming*) {
  const int rank = caller->worker;
  {
    const Lock lock(schedule_mutex_);
    workers_[rank]->left = true;
    workers_[rank]->present = false;
    parked_.remove_if([rank](const Parked& parked) { return parked.caller.worker == rank; });
  }
  Drop(rank);
  reducer_.ProcessEnded(rank);
  Tell(Server::Event::Kind::kLeft, rank, "");
  return OkAnswer(number);
}

void Service::Drop(int worker) {
  {
    const auto sharing = store_->Share();
    Lock lock(schedule_mutex_);
    schedule_.Leave(worker);
    CloseIfComplete();
    Release(&lock);
    ForgetPulled(worker);
  }
  reducer_.Check();
}

void Service::ForgetPulled(int worker) {
  if (options_.compensation == Compensation::kNone) return;
  for (uint32_t number = 0; Shard* shard = store_->Find(number); ++number) {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    shard->seen[worker] = {};
  }
}

void Service::Gone(const Caller& caller, const std::string& why) {
  if (!caller.opened) return;
  reducer_.Gone(caller.session);
  Worker& worker = *workers_[caller.worker];
  const Lock lock(schedule_mutex_);
  if (worker.session != caller.session) return;
  worker.session = 0;
  parked_.remove_if([&](const Parked& parked) { return parked.caller.worker == caller.worker; });
  schedule_.StopWaiting(caller.worker);
  if (!worker.present) return;
  worker.present = false;
  Tell(Server::Event::Kind::kLost, caller.worker, why);
}

void Service::CheckTime(TimePoint now) {
  std::vector<std::string> lines;
  {
    const auto sharing = store_->Share();
    Lock lock(schedule_mutex_);
    lines = schedule_.CheckTime(now);
    CloseIfComplete();
    Release(&lock);
  }
  for (const std::string& line : lines) Tell(Server::Event::Kind::kLog, -1, line);
  if (!lines.empty()) reducer_.Check();
  for (const int worker : reducer_.Late(now)) {
    Tell(Server::Event::Kind::kLog, -1,
         StrCat(options_.schedule.NameOf(worker),
                " is dropped: others have waited for it too long to add up"));
    Drop(worker);
  }
}

TimePoint Service::NextDeadline() {
  // Whoever comes while this looks wakes the timer again.
  armed_ = TimePoint::max().time_since_epoch().count();
  TimePoint next = reducer_.NextDeadline();
  {
    const Lock lock(schedule_mutex_);
    next = std::min(next, schedule_.NextDeadline());
  }
  armed_ = next.time_since_epoch().count();
  return next;
}

void Service::Arm(TimePoint deadline) {
  if (deadline.time_since_epoch().count() < armed_) outlet_->WakeTimer();
}

void Service::Tell(Server::Event::Kind kind, int worker, const std::string& text) {
  events_.Add({kind, worker, text});
}

void Service::Warn(const std::string& text) {
  try {
    Tell(Server::Event::Kind::kLog, -1, text);
  } catch (const std::bad_alloc&) {  // the log lacks a line
  }
}

void Service::Waits(bool* waits) const {
  const int workers = options_.schedule.workers;
  {
    const Lock lock(schedule_mutex_);
    for (int i = 0; i < workers * workers; ++i) {
      waits[i] = schedule_.WaitsFor(i / workers, i % workers);
    }
  }
  reducer_.AddWaits(waits);
}

ServerStats Service::stats() const {
  ServerStats stats;
  stats.pulls = pulls_;
  stats.shards = store_->shard_count();
  stats.value_bytes = store_->value_bytes();
  stats.log_bytes = log_.bytes();
  stats.log_failed = log_.has_lost() ? 1 : 0;
  stats.memory_held = store_->memory().held();
  stats.memory_budget = store_->memory().limit();
  const Lock lock(schedule_mutex_);
  stats.pushes = pushes_;
  stats.dropped_pushes = schedule_.dropped_pushes() + foreign_pushes_;
  stats.repeated_pushes = repeated_pushes_;
  stats.edits = edits_;
  stats.clock = schedule_.clock();
  stats.largest_lead = schedule_.largest_lead();
  return stats;
}

}  // namespace tfdist::ps
