// A worker that shares no shards with the others is reported once, at its first update.
#include "core/ps/server/disjoint_workers.h"

#include "testing.h"

namespace tfdist::testing::ps_server_disjoint_workers_test {
namespace {

using ps::DisjointWorkerCheck;

TEST_CASE("finds a worker without a shard in common") {
  DisjointWorkerCheck three;
  three.AddShards(0, {0, 1, 2});
  three.AddShards(1, {3, 4});
  three.AddShards(2, {1, 4});
  CHECK(three.FindDisjointWorker(0, {}) == -1);
  CHECK(three.FindDisjointWorker(0, {0, 1}) == -1);  // no other worker is active
  CHECK(three.FindDisjointWorker(2, {4, 1}) == -1);  // rank 0 shares 1
  CHECK(three.FindDisjointWorker(2, {9}) == -1);     // not its first update
  CHECK(three.FindDisjointWorker(1, {3}) == 2);      // neither 0 nor 2 shares 3
  CHECK(three.FindDisjointWorker(1, {3}) == -1);

  DisjointWorkerCheck two;
  two.AddShards(1, {0});
  two.AddShards(0, {7});
  CHECK(two.FindDisjointWorker(1, {0}) == -1);
  CHECK(two.FindDisjointWorker(0, {7}) == 1);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_disjoint_workers_test
