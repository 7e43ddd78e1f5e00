// The ranks of a communicator, and their names in messages.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_GROUP_H_
#define TFDIST_OPS_CORE_COLLECTIVES_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tfdist {

struct Group {
  int rank = 0, size = 1;
  std::vector<std::string> addresses;  // "host:port" of each rank; empty before Connect
  std::vector<int> hosts;              // of each rank, numbered
  uint64_t id = 0;                     // the same on all ranks; 0 before Connect

  std::string Self() const { return StrCat("rank ", rank, " of ", size); }
  std::string Name(int peer) const {
    return StrCat("rank ", peer, " (", addresses.empty() ? "?" : addresses[peer], ")");
  }
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_GROUP_H_
