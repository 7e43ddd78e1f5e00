#include "core/ps/client/faces/parameters.h"

#include <map>
#include <memory>
#include <utility>

#include "core/ps/client/operations/pull_operation.h"

namespace tfdist::ps {
namespace {

uint64_t NanosecondsSince(TimePoint start) {
  return static_cast<uint64_t>(Nanoseconds(Clock::now() - start));
}

}  // namespace

Parameters::Parameters(ClientState* state, Commits* commits, Lookups* lookups)
    : state_(state),
      commits_(commits),
      lookups_(lookups),
      accumulated_(&state->parameters, &state->pool) {}

Status Parameters::Add(ParameterSpec spec, int* id) {
  return state_->parameters.Add(std::move(spec), state_->options.servers, id);
}

std::vector<BoundOptimizer> Parameters::bound() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bound_;
}

void Parameters::Create(int parameter, Memory value, Done done) {
  if (Status s = state_->CheckParameter(parameter, "the creation"); !s.ok()) return done(s);
  const ParameterSpec& spec = state_->parameters.spec(parameter);
  if (value.data == nullptr && spec.elements > 0) {
    return done(
        InvalidArgument(StrCat("parameter '", spec.name, "' cannot be created without a value")));
  }
  // Asks without the value first, which may be large: most often another worker, or this one before
  // a restart, has created the parameter.
  state_->submit(
      std::make_shared<CreateOperation>(&state_->parameters, parameter, nullptr,
                                        [this, parameter, value, done](const Status& status) {
                                          if (!status.ok()) return done(status);
                                          CreateMissing(parameter, value, done);
                                        }));
}

void Parameters::CreateMissing(int parameter, const Memory& value, const Done& done) {
  state_->submit(std::make_shared<CreateOperation>(
      &state_->parameters, parameter, &value, [this, parameter, value, done](const Status& status) {
        if (status.ok()) {
          state_->parameters.With(parameter, [&](Parameter& known) {
            if (known.pulled.data == nullptr) known.SetPulled(value);
          });
        }
        done(status);
      }));
}

void Parameters::Bind(const OptimizerConfig& config, std::vector<Binding> bindings, Done done) {
  if (Status s = CheckBindings(state_->parameters, bindings); !s.ok()) return done(s);
  for (const Binding& binding : bindings) {
    for (const int slot : binding.slots) Exclude(slot);
  }
  const BoundOptimizer optimizer{config, std::move(bindings)};
  state_->submit(std::make_shared<BindOperation>(&state_->parameters, optimizer,
                                                 [this, optimizer, done](const Status& status) {
                                                   if (status.ok()) {
                                                     const std::lock_guard<std::mutex> lock(mutex_);
                                                     bound_.push_back(optimizer);
                                                   }
                                                   done(status);
                                                 }));
}

void Parameters::Exclude(int parameter) {
  if (!state_->parameters.Has(parameter)) return;
  state_->parameters.With(parameter, [](Parameter& known) { known.excluded = true; });
}

bool Parameters::IsExcluded(int parameter) const {
  return state_->parameters.Has(parameter) &&
         state_->parameters.With(parameter, [](const Parameter& known) { return known.excluded; });
}

void Parameters::Pull(std::vector<int> parameters, bool begins_step, Allocate allocate, Done done) {
  for (const int parameter : parameters) {
    if (Status s = state_->CheckParameter(parameter, "a pull"); !s.ok()) return done(s);
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
  // Fetched values replace this worker's changes.
  if (Status s = PushAccumulated(); !s.ok()) return done(s);
  const TimePoint start = Clock::now();
  state_->submit(std::make_shared<PullOperation>(
      &state_->parameters, parameters, begins_step, state_->options.servers, std::move(allocate),
      [this, start, begins_step, done = std::move(done)](const Status& status, uint64_t bytes) {
        if (status.ok()) {
          state_->counters.Count([&](ClientStats& stats) {
            ++stats.pulls;
            stats.bytes_pulled += bytes;
            stats.pull_nanoseconds += NanosecondsSince(start);
          });
        } else if (begins_step) {
          const std::lock_guard<std::mutex> lock(mutex_);
          fetch_due_ = true;
        }
        done(status);
      }));
}

Memory Parameters::Pulled(int parameter) const {
  if (!state_->parameters.Has(parameter)) return {};
  return state_->parameters.With(parameter, [](const Parameter& known) { return known.pulled; });
}

Memory Parameters::TakePulled(int parameter) {
  if (!state_->parameters.Has(parameter)) return {};
  return state_->parameters.With(parameter, [](Parameter& known) {
    for (ShardState& shard : known.shards) shard.version = 0;
    return std::exchange(known.pulled, {});
  });
}

void Parameters::Stage(const StepValues& step, std::vector<Gradient> gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Gradient& gradient : gradients) staged_.gradients.emplace_back(step, std::move(gradient));
}

void Parameters::StageRows(const StepValues& step, RowGradient gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  staged_.row_gradients.emplace_back(step, std::move(gradient));
}

void Parameters::Push(std::vector<Value> now, Done done, bool ends_step, bool waits) {
  lookups_->EndStep();
  StepContents step;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_step_ = accumulates() && !ends_step;
    if (!in_step_) step = std::exchange(staged_, {});
  }
  if (accumulates() && !ends_step) return done(Status());  // its gradients stay staged
  step.values = std::move(now);
  if (ends_step) step.commits = commits_->tasks().Take(&step.has_lost);
  Status status;
  bool answers = false;
  if (accumulates()) {
    const std::lock_guard<std::mutex> pushing(pushing_);
    accumulated_.Add(std::move(step));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      fetch_due_ = fetch_due_ || ++fetched_steps_ >= state_->options.n_fetch;
    }
    if (accumulated_.count() >= state_->options.n_push) {
      answers = Send(accumulated_.Take(), done, waits, &status);
    }
  } else {
    answers = Send(std::move(step), done, waits, &status);
  }
  if (!answers) done(status);
}

Status Parameters::PushAccumulated() {
  const std::lock_guard<std::mutex> pushing(pushing_);
  Status status;
  if (accumulated_.count() > 0) {
    Send(accumulated_.Take(), nullptr, /*waits=*/false, &status);
  }
  return status;
}

bool Parameters::Send(StepContents step, const Done& done, bool waits, Status* status) {
  const TimePoint start = Clock::now();
  const auto count = [this, start, commits = step.commits](const PushOperation::Outcome& outcome) {
    if (outcome.refused) commits_->tasks().Refuse(commits);
    state_->counters.Count([&](ClientStats& stats) {
      ++stats.pushes;
      stats.dropped_pushes += outcome.dropped ? 1 : 0;
      stats.refused_pushes += outcome.refused ? 1 : 0;
      stats.bytes_pushed += outcome.bytes;
      stats.push_nanoseconds += NanosecondsSince(start);
    });
    const std::lock_guard<std::mutex> lock(mutex_);
    fetch_due_ = fetch_due_ || outcome.refused;
  };
  auto push = std::make_shared<PushOperation>(
      &state_->parameters, &state_->directory, &state_->pool, &pushes_,
      [count, answered = waits ? done : nullptr](const Status& status,
                                                 const PushOperation::Outcome& outcome) {
        if (status.ok()) count(outcome);
        if (answered != nullptr) answered(status);
      });
  if (step.has_lost) {
    // Others train these records: nothing of the step is sent, and the changed values are fetched
    // again.
    for (const Value& value : step.values) {
      const Memory before = TakePulled(value.parameter);
      // Until the fetch, changes of later steps count from here.
      if (accumulates()) {
        state_->parameters.With(value.parameter,
                                [&](Parameter& known) { known.SetPulled(value.now); });
      }
    }
    // Accumulated steps may have trained tasks that this worker still owns: it gives them back.
    if (accumulates()) commits_->tasks().Refuse(step.commits);
    push->CountStep();
    state_->counters.Count([](ClientStats& stats) { ++stats.refused_pushes; });
    const std::lock_guard<std::mutex> lock(mutex_);
    fetch_due_ = true;
  } else {
    push->SetCommits(step.commits);
    *status = FillPush(step, push.get());
  }
  if (!status->ok() || push->empty()) return false;
  push->SetUnit(commits_->BeginPush());
  state_->submit(std::move(push));
  return waits;
}

Status Parameters::FillPush(const StepContents& step, PushOperation* push) {
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
    if (Status s = push->AddChange(value.parameter, value.now, state_->options.workers == 1);
        !s.ok()) {
      return s;
    }
  }
  return Status();
}

void Parameters::Set(std::vector<Value> values, Done done) {
  for (const Value& value : values) {
    if (Status s = state_->CheckParameter(value.parameter, "a new value"); !s.ok()) return done(s);
    const ParameterSpec& spec = state_->parameters.spec(value.parameter);
    if (value.now.data == nullptr && spec.elements > 0) {
      return done(InvalidArgument(StrCat("parameter '", spec.name, "' cannot be set to no value")));
    }
  }
  for (const Value& value : values) {
    state_->parameters.With(value.parameter, [&](Parameter& known) { known.SetPulled(value.now); });
  }
  state_->submit(std::make_shared<SetOperation>(&state_->parameters, values, std::move(done)));
}

}  // namespace tfdist::ps
