#include "core/ps/client/client.h"

#include <chrono>
#include <future>
#include <map>

#include "core/ps/client/connection_setup.h"
#include "core/ps/client/handshake.h"
#include "core/ps/client/operations/pull_operation.h"

namespace tfdist::ps {
namespace {

uint64_t NanosecondsSince(TimePoint start) {
  return static_cast<uint64_t>(Nanoseconds(Clock::now() - start));
}

}  // namespace

Status Client::Create(const ClientOptions& options, std::unique_ptr<Client>* out) {
  if (options.servers < 1 || options.worker < 0 || options.worker >= options.workers) {
    return InvalidArgument(StrCat("expected at least 1 server and 0 <= worker < workers, received ",
                                  options.servers, " servers, worker ", options.worker, " of ",
                                  options.workers));
  }
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument(
        StrCat("expected a timeout of more than 0 s, received ", options.timeout_seconds, " s"));
  }
  if (options.n_push < 1 || options.n_fetch < 1) {
    return InvalidArgument(StrCat("expected n_push and n_fetch of at least 1, received ",
                                  options.n_push, " and ", options.n_fetch));
  }
  std::unique_ptr<Client> made(new Client(options));
  if (Status s = ClientThread::Create(options.servers, options.timeout_seconds, &made->thread_);
      !s.ok()) {
    return s;
  }
  *out = std::move(made);
  return Status();
}

Client::Client(const ClientOptions& options)
    : options_(options),
      directory_(options.servers),
      lookups_(
          &directory_, &pool_, [this](OperationPtr lookup) { thread_->Submit(std::move(lookup)); },
          [this](double seconds, std::function<void()> what) {
            thread_->CallLater(seconds, std::move(what));
          },
          options.timeout_seconds),
      edits_(options.servers),
      connecting_(options.servers),
      accumulated_(&table_, &pool_) {}

Client::~Client() = default;

Status Client::Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                       double timeout_seconds) {
  if (server < 0 || server >= options_.servers) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("expected a server from 0 to ", options_.servers - 1, ", received ", server));
  }
  const std::lock_guard<std::mutex> lock(connecting_[server]);
  // Until Adopt, no operation uses the server, and `view` stays valid.
  ServerView view;
  if (Status s = thread_->Disconnect(server, &view); !s.ok()) return s;
  Handshake handshake(Clock::now() + DurationOf(timeout_seconds));
  const bool again = view.incarnation != 0;
  Hello hello;
  hello.generation = generation;
  hello.rank = static_cast<uint32_t>(options_.worker);
  Status status = handshake.Begin(address, options_.expose, key, hello);
  if (status.ok()) {
    std::vector<BoundOptimizer> optimizers;
    ResolveRequest resolve;
    {
      const std::lock_guard<std::mutex> bound_lock(mutex_);
      optimizers = bound_;
      resolve = resolve_;
    }
    status = ConnectionSetup(server, &handshake, &table_, &directory_)
                 .Run({options_.process, pushes_}, optimizers, resolve, &view);
  }
  if (!status.ok()) {
    return Status(status.code(),
                  StrCat("cannot connect to ps ", server, " (", address, "): ", status.message()));
  }
  status = thread_->Adopt(server, handshake.TakeSocket(), handshake.welcome(), view);
  if (!status.ok()) return status;
  if (again) {
    const std::lock_guard<std::mutex> stats_lock(mutex_);
    ++stats_.reconnections;
  }
  return Status();
}

int Client::WaitForLost(double seconds) { return thread_->WaitForLost(seconds); }
std::string Client::Waiting(double seconds) { return thread_->Waiting(seconds); }

std::vector<ServerTraffic> Client::Traffic() { return thread_->Traffic(); }

void Client::GiveUp(int server, const Status& status) {
  if (server >= 0 && server < options_.servers) thread_->GiveUp(server, status);
}

Status Client::AddParameter(ParameterSpec spec, int* id) {
  return table_.Add(std::move(spec), options_.servers, id);
}

Status Client::CheckParameter(int id, const char* what) const {
  if (table_.Has(id)) return Status();
  return InvalidArgument(StrCat(what, " of parameter ", id, ", which was not added"));
}

void Client::Create(int parameter, Memory value, Done done) {
  if (Status s = CheckParameter(parameter, "the creation"); !s.ok()) return done(s);
  const ParameterSpec& spec = table_.spec(parameter);
  if (value.data == nullptr && spec.elements > 0) {
    return done(
        InvalidArgument(StrCat("parameter '", spec.name, "' cannot be created without a value")));
  }
  // Asks without the value first, which may be large: most often another worker, or this one before
  // a restart, has created the parameter.
  thread_->Submit(std::make_shared<CreateOperation>(
      &table_, parameter, nullptr, [this, parameter, value, done](const Status& status) {
        if (!status.ok()) return done(status);
        CreateMissing(parameter, value, done);
      }));
}

void Client::CreateMissing(int parameter, const Memory& value, const Done& done) {
  thread_->Submit(std::make_shared<CreateOperation>(
      &table_, parameter, &value, [this, parameter, value, done](const Status& status) {
        if (status.ok()) {
          table_.With(parameter, [&](Parameter& known) {
            if (known.pulled.data == nullptr) known.SetPulled(value);
          });
        }
        done(status);
      }));
}

void Client::Bind(const OptimizerConfig& config, std::vector<Binding> bindings, Done done) {
  if (Status s = CheckBindings(table_, bindings); !s.ok()) return done(s);
  for (const Binding& binding : bindings) {
    for (const int slot : binding.slots) Exclude(slot);
  }
  const BoundOptimizer optimizer{config, std::move(bindings)};
  thread_->Submit(std::make_shared<BindOperation>(
      &table_, optimizer, [this, optimizer, done](const Status& status) {
        if (status.ok()) {
          const std::lock_guard<std::mutex> lock(mutex_);
          bound_.push_back(optimizer);
        }
        done(status);
      }));
}

void Client::Exclude(int parameter) {
  if (!table_.Has(parameter)) return;
  table_.With(parameter, [](Parameter& known) { known.excluded = true; });
}

bool Client::IsExcluded(int parameter) const {
  return table_.Has(parameter) &&
         table_.With(parameter, [](const Parameter& known) { return known.excluded; });
}

void Client::Pull(std::vector<int> parameters, bool begins_step, Allocate allocate, Done done) {
  for (const int parameter : parameters) {
    if (Status s = CheckParameter(parameter, "a pull"); !s.ok()) return done(s);
  }
  bool is_due = true;
  if (begins_step) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool within = std::exchange(in_step_, false);
    // Gradients of a step that failed before its push.
    if (!within) staged_ = {};
    is_due = !accumulates() || (fetch_due_ && !within);
    if (is_due) {
      fetch_due_ = false;
      fetched_steps_ = 0;
    }
  }
  if (!is_due) return done(Status());
  // What is fetched replaces this worker's changes.
  if (Status s = PushAccumulated(); !s.ok()) return done(s);
  const TimePoint start = Clock::now();
  thread_->Submit(std::make_shared<PullOperation>(
      &table_, parameters, begins_step, options_.servers, std::move(allocate),
      [this, start, begins_step, done = std::move(done)](const Status& status, uint64_t bytes) {
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          if (status.ok()) {
            ++stats_.pulls;
            stats_.bytes_pulled += bytes;
            stats_.pull_nanoseconds += NanosecondsSince(start);
          } else if (begins_step) {
            fetch_due_ = true;
          }
        }
        done(status);
      }));
}

Memory Client::Pulled(int parameter) const {
  if (!table_.Has(parameter)) return {};
  return table_.With(parameter, [](const Parameter& known) { return known.pulled; });
}

Memory Client::TakePulled(int parameter) {
  if (!table_.Has(parameter)) return {};
  return table_.With(parameter, [](Parameter& known) {
    for (ShardState& shard : known.shards) shard.version = 0;
    return std::exchange(known.pulled, {});
  });
}

int Client::AddTable(const std::string& name, const TableConfig& config, bool resets_slots) {
  return directory_.Add(name, config, resets_slots);
}

void Client::CreateTable(int table, Done done) {
  if (!directory_.Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  // A request that a server cannot decode would break its connection.
  TableRequest read;
  const TableRequest request = directory_.RequestFor(table);
  if (Status s = Decode(Encode(request), &read); !s.ok()) return done(s);
  thread_->Submit(std::make_shared<CreateTableOperation>(&directory_, table, std::move(done)));
}

void Client::ScanRows(int table, int server, uint64_t max_rows, bool slots, RowScan* scan,
                      Done done) {
  if (!directory_.Has(table) || server < 0 || server >= options_.servers) {
    return done(InvalidArgument(StrCat("there is no table ", table, " on ps ", server)));
  }
  thread_->Submit(std::make_shared<ScanRowsOperation>(&directory_, table, server, max_rows, slots,
                                                      scan, std::move(done)));
}

void Client::EditRows(int table, const TableEdit& edit, uint64_t floats, Done done) {
  if (!directory_.Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  thread_->Submit(std::make_shared<EditRowsOperation>(
      &directory_, table, edit, floats, &edits_,
      [this, table, done = std::move(done)](const Status& status) {
        // Also after a failure: some servers may have carried it out.
        lookups_.Forget(table);
        done(status);
      }));
}

void Client::FindRows(int table, const std::vector<int64_t>& ids, const FoundRows& to, Done done) {
  if (!directory_.Has(table)) return done(InvalidArgument(StrCat("there is no table ", table)));
  thread_->Submit(
      std::make_shared<FindRowsOperation>(&directory_, table, ids, to, std::move(done)));
}

void Client::Stage(const StepValues& step, std::vector<Gradient> gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Gradient& gradient : gradients) staged_.gradients.emplace_back(step, std::move(gradient));
}

void Client::StageRows(const StepValues& step, RowGradient gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  staged_.row_gradients.emplace_back(step, std::move(gradient));
}

void Client::Push(std::vector<Value> now, Done done, bool ends_step, bool waits) {
  lookups_.EndStep();
  StepContents step;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_step_ = accumulates() && !ends_step;
    if (!in_step_) step = std::exchange(staged_, {});
  }
  if (accumulates() && !ends_step) return done(Status());  // its gradients stay staged
  step.values = std::move(now);
  if (ends_step) step.commits = commits_.Take(&step.has_lost);
  Status status;
  bool answers = false;
  if (accumulates()) {
    const std::lock_guard<std::mutex> pushing(pushing_);
    accumulated_.Add(std::move(step));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      fetch_due_ = fetch_due_ || ++fetched_steps_ >= options_.n_fetch;
    }
    if (accumulated_.count() >= options_.n_push) {
      answers = Send(accumulated_.Take(), done, waits, &status);
    }
  } else {
    answers = Send(std::move(step), done, waits, &status);
  }
  if (!answers) done(status);
}

Status Client::PushAccumulated() {
  const std::lock_guard<std::mutex> pushing(pushing_);
  Status status;
  if (accumulated_.count() > 0) {
    Send(accumulated_.Take(), nullptr, /*waits=*/false, &status);
  }
  return status;
}

bool Client::Send(StepContents step, const Done& done, bool waits, Status* status) {
  const TimePoint start = Clock::now();
  const auto count = [this, start, commits = step.commits](const PushOperation::Outcome& outcome) {
    if (outcome.refused) commits_.Refuse(commits);
    const std::lock_guard<std::mutex> lock(mutex_);
    fetch_due_ = fetch_due_ || outcome.refused;
    ++stats_.pushes;
    stats_.dropped_pushes += outcome.dropped ? 1 : 0;
    stats_.refused_pushes += outcome.refused ? 1 : 0;
    stats_.bytes_pushed += outcome.bytes;
    stats_.push_nanoseconds += NanosecondsSince(start);
  };
  auto push = std::make_shared<PushOperation>(
      &table_, &directory_, &pool_, &pushes_,
      [count, answered = waits ? done : nullptr](const Status& status,
                                                 const PushOperation::Outcome& outcome) {
        if (status.ok()) count(outcome);
        if (answered != nullptr) answered(status);
      });
  if (step.has_lost) {
    // Others train these records: nothing of the step is sent, and what it has changed is fetched.
    for (const Value& value : step.values) {
      const Memory before = TakePulled(value.parameter);
      // Until the fetch, changes of later steps count from here.
      if (accumulates()) {
        table_.With(value.parameter, [&](Parameter& known) { known.SetPulled(value.now); });
      }
    }
    // Accumulated steps may have trained tasks that this worker still owns: it gives them back.
    if (accumulates()) commits_.Refuse(step.commits);
    push->CountStep();
    const std::lock_guard<std::mutex> lock(mutex_);
    ++stats_.refused_pushes;
    fetch_due_ = true;
  } else {
    push->SetCommits(step.commits);
    *status = FillPush(step, push.get());
  }
  if (!status->ok() || push->empty()) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    unit_.pushed = true;
    push->SetUnit(unit_.unit);
  }
  thread_->Submit(std::move(push));
  return waits;
}

void Client::Resolve(ResolveRequest resolve, Done done) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    resolve_ = resolve;
    unit_ = {resolve.next, false};
  }
  thread_->Submit(
      std::make_shared<ResolveOperation>(std::move(resolve), options_.servers, std::move(done)));
}

void Client::BeginUnit(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unit_.unit.number = number;
  unit_.pushed = false;
}

void Client::Commit(CommitOperation::Done done) {
  CommitRequest commit;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commit = unit_;
    committed_ = commit;
  }
  Send(commit, std::move(done));
}

void Client::RepeatCommit(CommitOperation::Done done) {
  std::optional<CommitRequest> commit;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commit = committed_;
  }
  if (!commit) return done(Status(), CommitOutcome());
  // What was lost is counted.
  commit->pushed = false;
  Send(*commit, std::move(done));
}

void Client::Send(const CommitRequest& commit, CommitOperation::Done done) {
  thread_->Submit(std::make_shared<CommitOperation>(
      commit, options_.servers,
      [this, done = std::move(done)](const Status& status, const CommitOutcome& outcome) {
        if (status.ok() && outcome.lost) {
          const std::lock_guard<std::mutex> lock(mutex_);
          ++stats_.dropped_pushes;
        }
        done(status, outcome);
      }));
}

Status Client::FillPush(const StepContents& step, PushOperation* push) {
  for (const auto& [at, gradient] : step.gradients) {
    if (Status s = push->AddGradient(at, gradient); !s.ok()) return s;
  }
  std::map<int, std::vector<const RowGradient*>> by_table;
  std::map<int, StepValues> steps;
  for (const auto& [at, gradient] : step.row_gradients) {
    by_table[gradient.table].push_back(&gradient);
    steps[gradient.table] = at;
  }
  for (const auto& [table, all] : by_table) {
    if (Status s = push->AddTableRows(steps[table], all); !s.ok()) return s;
  }
  for (const Value& value : step.values) {
    if (Status s = push->AddChange(value.parameter, value.now, options_.workers == 1); !s.ok()) {
      return s;
    }
  }
  return Status();
}

void Client::Set(std::vector<Value> values, Done done) {
  for (const Value& value : values) {
    if (Status s = CheckParameter(value.parameter, "a new value"); !s.ok()) return done(s);
    const ParameterSpec& spec = table_.spec(value.parameter);
    if (value.now.data == nullptr && spec.elements > 0) {
      return done(InvalidArgument(StrCat("parameter '", spec.name, "' cannot be set to no value")));
    }
  }
  for (const Value& value : values) {
    table_.With(value.parameter, [&](Parameter& known) { known.SetPulled(value.now); });
  }
  thread_->Submit(std::make_shared<SetOperation>(&table_, values, std::move(done)));
}

void Client::Exchange(const std::vector<Value>& values, const std::vector<Memory>& moves,
                      double alpha, Done done) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (Status s = CheckParameter(values[i].parameter, "an exchange"); !s.ok()) return done(s);
    const ParameterSpec& spec = table_.spec(values[i].parameter);
    if (spec.elements > 0 && (values[i].now.data == nullptr || moves[i].data == nullptr)) {
      return done(InvalidArgument(StrCat("parameter '", spec.name, "' cannot exchange no value")));
    }
  }
  thread_->Submit(std::make_shared<ExchangeOperation>(&table_, values, moves, alpha, &exchanges_,
                                                      std::move(done)));
}

void Client::Reduce(uint64_t key, std::vector<Tensor> tensors, Done done) {
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype < DType::kFloat16 || tensor.dtype > DType::kInt64) {
      return done(InvalidArgument(StrCat("a reduction of opaque bytes, or of unknown dtype ",
                                         static_cast<int>(tensor.dtype))));
    }
  }
  const int server = static_cast<int>(key % static_cast<uint64_t>(options_.servers));
  thread_->Submit(std::make_shared<ReduceOperation>(key, std::move(tensors), server, &pool_,
                                                    &reduce_counts_, std::move(done)));
}

Status Client::Flush(double timeout_seconds) { return thread_->Flush(timeout_seconds); }

Status Client::Leave(double timeout_seconds) {
  const TimePoint start = Clock::now();
  const Status pushed = PushAccumulated();
  const Status flushed = Flush(timeout_seconds);
  auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> ended = told->get_future();
  thread_->Submit(std::make_shared<LeaveOperation>(
      options_.servers, [told](const Status& status) { told->set_value(status); }));
  const auto left = std::chrono::duration<double>(timeout_seconds) - (Clock::now() - start);
  if (!pushed.ok()) return pushed;
  if (!flushed.ok()) return flushed;
  if (ended.wait_for(left) == std::future_status::ready) return ended.get();
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("no answer to a farewell within ", timeout_seconds, " s"));
}

void Client::Close() {
  lookups_.Close();
  thread_->Close();
}

ClientStats Client::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

}  // namespace tfdist::ps
