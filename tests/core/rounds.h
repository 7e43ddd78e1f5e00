// How often tests repeat their rounds.
#ifndef TFDIST_TESTS_CORE_ROUNDS_H_
#define TFDIST_TESTS_CORE_ROUNDS_H_

namespace tfdist::testing {

// Long tests run one of `share` rounds. The plain tests run all rounds. Under a sanitizer, which is
// ten times slower, tests run a part of them, or all with --long.
#ifndef TFDIST_TEST_SHARE
#define TFDIST_TEST_SHARE 1
#endif
inline int share = TFDIST_TEST_SHARE;
inline int Rounds(int all) { return (all + share - 1) / share; }

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_ROUNDS_H_
