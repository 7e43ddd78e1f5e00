// Selects the algorithm of a collective, and makes this rank's plan.
//
// All ranks select the same algorithm, because the choice depends only on the part of the signature
// that is equal on all ranks, and on the hosts of the ranks.
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

// The index of each rank's host, for addresses "host:port". Hosts count from 0 in the order of
// their lowest ranks.
std::vector<int> NumberHosts(const std::vector<std::string>& addresses);

// `hosts` has an entry for each rank. The signature is complete except for the algorithm.
Algorithm SelectAlgorithm(const Signature& signature, const std::vector<int>& hosts);

// Whether collectives of this kind have this algorithm.
bool HasAlgorithm(CollectiveKind kind, Algorithm algorithm);

// The number of segments of a striped all-reduce; 0 if its buffer keeps its order.
int StripedSegments(const Signature& signature, const std::vector<int>& hosts);

// The buffer of a striped all-reduce in the order of its segments.
FlatView InOrderOfStripes(const FlatView& view, const Signature& signature, int segments);

// The signature is complete, and its kind has its algorithm. The buffer of a striped all-reduce is
// in the order of its segments.
Plan MakePlan(const Signature& signature, int rank, const std::vector<int>& hosts);

// The collective itself, which holds `keepalive` until it ends.
std::unique_ptr<Collective> MakePlanExecutor(CollectiveOptions options, int rank,
                                             const std::vector<int>& hosts, FlatView input,
                                             FlatView output, std::shared_ptr<void> keepalive);

// The sizes of a rank's input and output.
struct DataBytes {
  size_t input = 0, output = 0;
};
DataBytes ExpectedBytes(const Signature& signature, int rank, int size);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_SELECTOR_H_
