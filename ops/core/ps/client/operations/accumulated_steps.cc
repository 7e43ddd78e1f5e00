#include "core/ps/client/operations/accumulated_steps.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/math/dtype.h"

namespace tfdist::ps {

void AccumulatedSteps::Add(StepContents step) {
  ++count_;
  for (auto& [at, gradient] : step.gradients) {
    if (gradient.width == 0) {
      AddDense(at, gradient);
      continue;
    }
    Rows& rows = rows_[gradient.parameter];
    rows.step = at;
    rows.gradients.push_back(std::move(gradient));
  }
  // A push adds up the gradients of a table's rows.
  std::move(step.row_gradients.begin(), step.row_gradients.end(),
            std::back_inserter(rest_.row_gradients));
  for (Value& value : step.values) values_[value.parameter] = std::move(value.now);
  for (const TaskCommit& commit : step.commits) {
    const auto same =
        std::find_if(rest_.commits.begin(), rest_.commits.end(), [&](const TaskCommit& known) {
          return known.lease == commit.lease && known.upto == commit.from;
        });
    if (same == rest_.commits.end()) {
      rest_.commits.push_back(commit);
    } else {
      same->upto = commit.upto;
    }
  }
  rest_.has_lost = rest_.has_lost || step.has_lost;
}

void AccumulatedSteps::AddDense(const StepValues& step, const Gradient& gradient) {
  Sum& sum = sums_[gradient.parameter];
  sum.step = step;
  const ParameterSpec& spec = table_->spec(gradient.parameter);
  if (sum.values.data == nullptr || gradient.values.data == nullptr) {
    sum.values = gradient.values;  // the only gradient, or one of no elements or that is refused
    sum.owned = false;
    return;
  }
  Memory total = sum.values;
  if (!sum.owned) {
    const BlockPtr block = pool_->Allocate(spec.elements * ByteSize(spec.dtype));
    total = {block->data(), block};
  }
  tfdist::Add(spec.dtype, total.data, sum.values.data, gradient.values.data, spec.elements);
  sum.values = total;
  sum.owned = true;
}

// One gradient of all rows, which may repeat: servers add those up.
Gradient AccumulatedSteps::Joined(std::vector<Gradient> gradients) const {
  Gradient& first = gradients.front();
  if (gradients.size() == 1) return std::move(first);
  const size_t row_bytes = first.width * ByteSize(table_->spec(first.parameter).dtype);
  Gradient joined;
  joined.parameter = first.parameter;
  joined.width = first.width;
  for (const Gradient& gradient : gradients) {
    joined.rows.insert(joined.rows.end(), gradient.rows.begin(), gradient.rows.end());
  }
  const BlockPtr block = pool_->Allocate(joined.rows.size() * row_bytes);
  char* to = block->data();
  for (const Gradient& gradient : gradients) {
    const size_t bytes = gradient.rows.size() * row_bytes;
    if (bytes > 0) std::memcpy(to, gradient.values.data, bytes);
    to += bytes;
  }
  joined.values = {block->data(), block};
  return joined;
}

StepContents AccumulatedSteps::Take() {
  StepContents all = std::exchange(rest_, {});
  for (auto& [parameter, sum] : sums_) {
    Gradient gradient;
    gradient.parameter = parameter;
    gradient.values = std::move(sum.values);
    all.gradients.emplace_back(sum.step, std::move(gradient));
  }
  for (auto& [parameter, rows] : rows_) {
    all.gradients.emplace_back(rows.step, Joined(std::move(rows.gradients)));
  }
  for (auto& [parameter, now] : values_) all.values.push_back({parameter, std::move(now)});
  values_.clear();
  sums_.clear();
  rows_.clear();
  count_ = 0;
  return all;
}

}  // namespace tfdist::ps
