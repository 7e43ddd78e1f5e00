// In which collectives this rank has waited for one peer to start them: for the straggler report.
//
// One thread notes waits; any thread may take them. Sums are kept by the collective's title, since
// a step runs the same collectives again and again.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_WAIT_CAUSES_H_
#define TFDIST_OPS_CORE_COLLECTIVES_WAIT_CAUSES_H_

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/clock.h"

namespace tfdist {

class WaitCauses {
 public:
  // Shorter waits are no straggler's. Leaving them out keeps a step without one free of this.
  static constexpr std::chrono::milliseconds kShortest{1};
  // Titles between two takes; waits in further ones are left out.
  static constexpr size_t kMaxTitles = 1024;

  void Note(const std::string& title, Clock::duration waited) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sums_.find(title);
    if (found != sums_.end()) {
      found->second += waited;
    } else if (sums_.size() < kMaxTitles) {
      sums_.emplace(title, waited);
    }
  }

  // The title with the largest sum since the last call, or empty; forgets all sums.
  std::string TakeLongest() {
    std::map<std::string, Clock::duration> sums;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      sums.swap(sums_);
    }
    const auto longest = std::max_element(
        sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return longest == sums.end() ? "" : longest->first;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Clock::duration> sums_;  // guarded by mutex_
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_WAIT_CAUSES_H_
