// Who trains alone is noticed once, at the first update.
#include <cstdio>

#include "core/ps/server/disjoint_workers.h"
#include "testing.h"

namespace tfdist::testing::ps_acquaintance_test {
namespace {

using ps::DisjointWorkerCheck;

void Main() {
  DisjointWorkerCheck of_all;
  of_all.Knows(0, {0, 1, 2});
  of_all.Knows(1, {3, 4});
  of_all.Knows(2, {1, 4});
  EXPECT(of_all.FindDisjointWorker(0, {}) == -1);
  EXPECT(of_all.FindDisjointWorker(0, {0, 1}) == -1);  // nobody else has updated anything
  EXPECT(of_all.FindDisjointWorker(2, {4, 1}) == -1);  // rank 0 knows 1
  EXPECT(of_all.FindDisjointWorker(2, {9}) == -1);     // not its first
  EXPECT(of_all.FindDisjointWorker(1, {3}) == 2);      // neither 0 nor 2 knows 3
  EXPECT(of_all.FindDisjointWorker(1, {3}) == -1);

  DisjointWorkerCheck of_two;
  of_two.Knows(1, {0});
  of_two.Knows(0, {7});
  EXPECT(of_two.FindDisjointWorker(1, {0}) == -1);
  EXPECT(of_two.FindDisjointWorker(0, {7}) == 1);
  std::printf("acquaintance: ok\n");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::ps_acquaintance_test
