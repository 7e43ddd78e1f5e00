// Which algorithm carries out a collective, and what this rank does in it.
//
// All ranks choose alike, because they choose by what their signatures have in common and by where
// the ranks live.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_SELECTOR_H_
#define TFDIST_OPS_CORE_COLLECTIVES_SELECTOR_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/algorithms/plan.h"
#include "core/base/flat_view.h"
#include "core/collectives/collective.h"

namespace tfdist {

// Numbers the hosts of ranks whose addresses are "host:port", from 0 in the order of their lowest
// ranks.
std::vector<int> NumberHosts(const std::vector<std::string>& addresses);

// `hosts` has one entry for each rank. The signature is complete but for the algorithm.
Algorithm Choose(const Signature& signature, const std::vector<int>& hosts);

// Whether there is such an algorithm for this kind.
bool Suits(CollectiveKind kind, Algorithm algorithm);

// The signature is complete, and its algorithm suits its kind.
Plan MakePlan(const Signature& signature, int rank, const std::vector<int>& hosts);

// The collective itself. `kept` lives as long as it.
std::unique_ptr<Collective> MakeExchange(CollectiveOptions options, int rank,
                                         const std::vector<int>& hosts, FlatView input,
                                         FlatView output, std::shared_ptr<void> kept);

// How many bytes a rank's input and output have.
struct DataBytes {
  size_t input = 0, output = 0;
};
DataBytes ExpectedBytes(const Signature& signature, int rank, int size);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_SELECTOR_H_
