// Collectives over TLS: their values, and what a listener on the network sees.
#include <mutex>
#include <numeric>
#include <random>

#include "collectives/calls.h"
#include "net/certificates.h"
#include "net/recorder.h"

namespace tfdist::testing::tls_collectives_test {
namespace {

struct WithSockets {
  WithSockets() { shared_memory = false; }
  ~WithSockets() { shared_memory = true; }
};

// Sums of several sizes, from one element to several chunks.
void CheckSums(Ranks& ranks) {
  const int size = static_cast<int>(ranks.size());
  OnRanks(size, [&](int rank) {
    int32_t step = 0;
    for (const size_t count : {1, 10, 5000, 300000, 2000000}) {
      std::vector<int32_t> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i) * (rank + 1) + step;
      Ending ending = AllReduce(*ranks[rank], values, {1, "sum"}, DType::kInt32);
      CHECK_OK(Wait(ending));
      const int32_t factor = size * (size + 1) / 2;
      CHECK_EACH(i, count, values[i] == static_cast<int32_t>(i) * factor + size * step);
      ++step;
    }
  });
}

TEST_CASE("sums over TLS") {
  const WithSockets sockets;
  Authority authority;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1,IP:127.0.0.2"));
  for (const int size : {2, 3}) {
    Ranks ranks = ConnectedOn(size, 2);
    CheckSums(ranks);
  }
}

// A peer of the same machine and user is known to the kernel, so its memory is used as before.
TEST_CASE("shared memory is used beside TLS") {
  Authority authority;
  const Encrypted encrypted(authority.Issue("DNS:elsewhere"));  // would be refused
  Ranks ranks = Connected(2);
  CheckSums(ranks);
}

// Two ranks that meet through a recorder exchange a text.
std::string Recorded(const std::string& text) {
  const WithSockets sockets;
  Ranks ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(Communicator::Create(rank, 2, "", 0, &ranks[rank], false));
  }
  Recorder recorder(ranks[0]->port());
  const std::vector<std::string> addresses = {StrCat("127.0.0.1:", recorder.port()),
                                              StrCat("127.0.0.1:", ranks[1]->port())};
  OnRanks(2, [&](int rank) {
    REQUIRE_OK(ranks[rank]->Connect(TestKey(), 1, addresses, 20));
    std::vector<char> bytes(text.size(), '.');
    if (rank == 0) bytes.assign(text.begin(), text.end());
    const What what{1, "the name of a weight"};
    Ending ending = Broadcast(*ranks[rank], bytes, 0, what, DType::kUInt8);
    CHECK_OK(Wait(ending));
    CHECK(std::string(bytes.begin(), bytes.end()) == text);
  });
  ranks.clear();
  return recorder.Bytes();
}

TEST_CASE("a recorded connection shows nothing") {
  const std::string text = "the weights of a model, which nothing else has";
  const std::string plain = Recorded(text);
  CHECK_CONTAINS(plain, text);
  CHECK_CONTAINS(plain, "the name of a weight");
  Authority authority;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1"));
  const std::string sealed = Recorded(text);
  CHECK(sealed.size() > plain.size());
  for (const std::string& part : {text.substr(0, 8), std::string("the name"), std::string("TFD")}) {
    CHECK(sealed.find(part) == std::string::npos);
  }
}

}  // namespace
}  // namespace tfdist::testing::tls_collectives_test
