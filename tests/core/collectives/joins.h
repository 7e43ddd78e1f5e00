// A join for tests.
#ifndef TFDIST_TESTS_CORE_COLLECTIVES_JOINS_H_
#define TFDIST_TESTS_CORE_COLLECTIVES_JOINS_H_

#include <memory>
#include <utility>

#include "collectives/calls.h"

namespace tfdist::testing {

struct Joined {
  int last_rank = -1;
  Ending ending;
};

inline std::unique_ptr<Joined> Join(Communicator& comm, double timeout = 20, uint64_t key = 77) {
  auto joined = std::make_unique<Joined>();
  auto [options, ending] = Prepare(comm, {key, "the end", "", timeout});
  joined->ending = std::move(ending);
  comm.Join(std::move(options), &joined->last_rank);
  return joined;
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_COLLECTIVES_JOINS_H_
