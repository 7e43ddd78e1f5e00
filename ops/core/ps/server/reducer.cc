#include "core/ps/server/reducer.h"

#include <algorithm>
#include <new>

namespace tfdist::ps {
namespace {

constexpr size_t kMaxFinishedSums = 256;
// Sums that one worker began and others are missing in; all are looked through at each
// contribution.
constexpr size_t kMaxSumsOfWorker = 1024;
constexpr size_t kMaxKeys = 1 << 16;  // a job has one for each tensor or bucket that it adds up

}  // namespace

Reducer::Reducer(int workers, IsActive is_active, Patience patience, Deliver deliver,
                 Disconnect disconnect)
    : workers_(workers),
      is_active_(std::move(is_active)),
      patience_(std::move(patience)),
      deliver_(std::move(deliver)),
      disconnect_(std::move(disconnect)),
      latest_(workers),
      returned_(workers) {}

void Reducer::Add(uint64_t session, int worker, uint64_t id, const ReduceRequest& request,
                  std::vector<BlockPtr> tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (keys_.size() >= kMaxKeys && keys_.count(request.key) == 0) {
    const Status status(StatusCode::kFailedPrecondition,
                        StrCat("a reduction with a new key, but there are ", keys_.size(),
                               " already, as many as a server keeps"));
    return deliver_(session, ErrorAnswer(id, status));
  }
  Key& key = keys_[request.key];
  key.latest.resize(workers_);
  key.latest[worker] = std::max(key.latest[worker], request.sequence);
  latest_[worker] = std::max(latest_[worker], request.sequence);
  auto sum = Find(request.key, request.sequence);
  if (sum == sums_.end()) {
    if (key.finished && request.sequence <= *key.finished) {
      // The execution finished without this worker, which gets its own values back.
      return deliver_(session, {MessageType::kOk, id, "", std::move(tensors)});
    }
    const auto begun = std::count_if(sums_.begin(), sums_.end(), [worker](const Sum& other) {
      return other.first == worker && !other.finished;
    });
    if (static_cast<size_t>(begun) >= kMaxSumsOfWorker) {
      const Status status(StatusCode::kFailedPrecondition,
                          StrCat("too many reductions that rank ", worker,
                                 " has begun wait for other workers: ", begun));
      return deliver_(session, ErrorAnswer(id, status));
    }
    Sums fresh(1);
    sum = fresh.begin();
    sum->key = request.key;
    sum->sequence = request.sequence;
    sum->first = worker;
    sum->dtypes = request.dtypes;
    sum->elements = request.elements;
    sum->since = Clock::now();
    sum->waiting.reserve(1);
    sums_.splice(sums_.end(), fresh);  // entirely, or not at all without memory
  } else if (Status s = Compare(*sum, worker, request); !s.ok()) {
    return deliver_(session, ErrorAnswer(id, s));
  }
  if (sum->finished) {
    deliver_(session, {MessageType::kOk, id, "", sum->tensors});
    return Forget();
  }
  const bool waits =
      std::any_of(sum->waiting.begin(), sum->waiting.end(),
                  [session](const Waiting& waiting) { return waiting.session == session; });
  if (waits) {
    const Status status(StatusCode::kFailedPrecondition,
                        StrCat("reduction ", request.key, ", execution ", request.sequence,
                               ": rank ", worker, " waits for its answer already"));
    return deliver_(session, ErrorAnswer(id, status));
  }
  std::set<int> contributor = {worker};
  sum->waiting.push_back({session, worker, id});
  if (sum->contributors.empty()) {
    sum->tensors = std::move(tensors);
  } else if (sum->contributors.count(worker) == 0) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tfdist::Add(sum->dtypes[i], sum->tensors[i]->data(), sum->tensors[i]->data(),
                  tensors[i]->data(), sum->elements[i]);
    }
  }
  sum->contributors.merge(contributor);  // needs no memory
  FinishComplete();
}

Reducer::Sums::iterator Reducer::Find(uint64_t key, uint64_t sequence) {
  return std::find_if(sums_.begin(), sums_.end(),
                      [=](const Sum& sum) { return sum.key == key && sum.sequence == sequence; });
}

Status Reducer::Compare(const Sum& sum, int worker, const ReduceRequest& request) const {
  const auto differs = [&](const std::string& expected, const std::string& received) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("reduction ", sum.key, ", execution ", sum.sequence, ": expected ", expected,
               ", as from rank ", sum.first, ", received ", received, " from rank ", worker));
  };
  if (sum.dtypes.size() != request.dtypes.size()) {
    return differs(StrCat(sum.dtypes.size(), " tensors"), StrCat(request.dtypes.size()));
  }
  for (size_t i = 0; i < sum.dtypes.size(); ++i) {
    if (sum.dtypes[i] == request.dtypes[i] && sum.elements[i] == request.elements[i]) continue;
    return differs(StrCat(Describe(sum.dtypes[i], sum.elements[i]), " for tensor ", i),
                   Describe(request.dtypes[i], request.elements[i]));
  }
  return Status();
}

bool Reducer::IsMissing(const Sum& sum, int worker) const {
  const Key& key = keys_.at(sum.key);
  return sum.contributors.count(worker) == 0 && key.latest[worker] <= sum.sequence &&
         is_active_(worker);
}

void Reducer::FinishComplete() {
  for (Sum& sum : sums_) {
    bool complete = !sum.finished;
    for (int worker = 0; worker < workers_ && complete; ++worker) {
      complete = !IsMissing(sum, worker);
    }
    if (complete) Finish(&sum);
  }
  Forget();
}

void Reducer::Finish(Sum* sum) {
  sum->finished = true;
  std::optional<uint64_t>& finished = keys_.at(sum->key).finished;
  finished = std::max(finished.value_or(0), sum->sequence);
  for (const Waiting& waiting : sum->waiting) {
    try {
      deliver_(waiting.session, {MessageType::kOk, waiting.id, "", sum->tensors});
    } catch (const std::bad_alloc&) {
      disconnect_(waiting.session);  // the worker repeats its request; the sum is kept for it
    }
  }
  sum->waiting.clear();
}

// Keeps a result for workers whose connection breaks before they have received it.
void Reducer::Forget() {
  size_t finished = 0;
  for (auto sum = sums_.end(); sum != sums_.begin();) {
    --sum;
    if (!sum->finished) continue;
    const bool wanted = std::any_of(sum->contributors.begin(), sum->contributors.end(),
                                    [&](int worker) { return latest_[worker] <= sum->sequence; });
    if (wanted && ++finished <= kMaxFinishedSums) continue;
    sum = sums_.erase(sum);
  }
}

void Reducer::Check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  FinishComplete();
}

void Reducer::Reactivate(int worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  returned_[worker] = Clock::now();
}

void Reducer::EndProcess(int worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  latest_[worker] = 0;
  for (auto& [id, key] : keys_) {
    if (!key.latest.empty()) key.latest[worker] = 0;
  }
  for (Sum& sum : sums_) {
    if (sum.finished) sum.contributors.erase(worker);
  }
  Forget();
}

void Reducer::EndSession(uint64_t session) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Sum& sum : sums_) {
    const auto end =
        std::remove_if(sum.waiting.begin(), sum.waiting.end(),
                       [session](const Waiting& waiting) { return waiting.session == session; });
    sum.waiting.erase(end, sum.waiting.end());
  }
}

void Reducer::AddWaits(bool* waits) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Sum& sum : sums_) {
    if (sum.finished) continue;
    for (int other = 0; other < workers_; ++other) {
      if (!IsMissing(sum, other)) continue;
      for (const Waiting& waiting : sum.waiting) waits[waiting.worker * workers_ + other] = true;
    }
  }
}

std::vector<int> Reducer::Late(TimePoint now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<int> late;
  for (const Sum& sum : sums_) {
    if (sum.waiting.empty()) continue;
    for (int worker = 0; worker < workers_; ++worker) {
      if (!IsMissing(sum, worker)) continue;
      if (std::max(sum.since, returned_[worker]) + patience_(worker) <= now) late.insert(worker);
    }
  }
  return {late.begin(), late.end()};
}

TimePoint Reducer::NextDeadline() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TimePoint next = TimePoint::max();
  for (const Sum& sum : sums_) {
    if (sum.waiting.empty()) continue;
    for (int worker = 0; worker < workers_; ++worker) {
      if (!IsMissing(sum, worker)) continue;
      next = std::min(next, std::max(sum.since, returned_[worker]) + patience_(worker));
    }
  }
  return next;
}

}  // namespace tfdist::ps
