// Strangers at the data ports of a job that uses TLS, and of a plain one, while its ranks train.
#include <atomic>
#include <random>

#include "collectives/raw_peer.h"
#include "core/net/connect.h"
#include "core/net/tls/refusal_log.h"
#include "net/certificates.h"

namespace tfdist::testing::tls_acceptor_test {
namespace {

// Two ranks that all-reduce until the test ends, and the lines that refusals have written.
class Job {
 public:
  Job() {
    ProcessRefusals().set_write([this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_ += line;
    });
    shared_memory = false;
    comms_ = Connected(2);
    for (int rank = 0; rank < 2; ++rank) threads_.emplace_back([this, rank] { Work(rank); });
  }
  ~Job() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    for (auto& comm : comms_) CHECK_OK(comm->status());
    comms_.clear();
    shared_memory = true;
    ProcessRefusals().set_write([](const std::string&) {});
  }

  int port() const { return comms_[0]->port(); }
  uint64_t rejected() const { return comms_[0]->stats().rejected_connections; }
  std::string lines() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }
  void Await(const std::string& line) const {
    CHECK(Eventually([&] { return lines().find(line) != std::string::npos; }));
    CHECK_CONTAINS(lines(), line);
  }

 private:
  void Work(int rank) {
    for (int32_t step = 0;; ++step) {
      std::vector<int32_t> values(40001, step + rank);
      values.back() = stop_ ? 1 : 0;  // both ranks see it in the same step
      Ending ending = AllReduce(*comms_[rank], values, {1, "busy"}, DType::kInt32);
      CHECK_OK(Wait(ending));
      const bool last = values.back() > 0;
      values.pop_back();
      CHECK_ALL(values, 2 * step + 1);
      if (last) return;
    }
  }

  mutable std::mutex mutex_;
  std::string lines_;  // guarded by mutex_
  Ranks comms_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
};

// A client of OpenSSL's own. It may end before it learns that it was refused.
void Client(const Authority& authority, int port, const std::string& options) {
  authority.Run(StrCat("{ timeout 20 openssl s_client -connect 127.0.0.1:", port, " ", options,
                       " -quiet -verify_quiet -no_ign_eof </dev/null || true; }"));
}

// A reason is written once in half a minute, so each case has another one.
TEST_CASE("strangers at a port with TLS") {
  Authority authority, other;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1"));
  Job job;
  Client(authority, job.port(), "-tls1_2");
  job.Await("TLS: the handshake failed: unsupported protocol");
  Client(authority, job.port(), "");
  job.Await("TLS: the handshake failed: peer did not return a certificate");
  other.Issue("IP:127.0.0.1");
  Client(other, job.port(), "-cert own.pem -key own.key");
  job.Await("'CN = worker' was not issued by this job's authority");
  authority.Issue("IP:127.0.0.1", "20200101000000Z", "20210203040506Z");
  Client(authority, job.port(), "-cert own.pem -key own.key");
  job.Await("'CN = worker' expired on 2021-02-03 04:05:06 UTC");
  authority.Issue("IP:127.0.0.1", "20980101000000Z", "20990101000000Z");
  Client(authority, job.port(), "-cert own.pem -key own.key");
  job.Await("'CN = worker' is not valid before 2098-01-01 00:00:00 UTC");
  const uint64_t before = job.rejected();
  CHECK(before == 5);
  {
    RawPeer plain(job.port());
    CHECK(plain.Send(HelloFrame(1)));
    char answer = 0;
    CHECK(plain.TryReceive(&answer, 1));
    CHECK(answer == kTlsAlert);
    plain.AwaitClose();
  }
  job.Await("TLS: the other side is plain, and this side requires TLS");
  RawPeer web(job.port());
  CHECK(web.Send("GET / HTTP/1.1\r\n\r\n"));
  web.AwaitClose();
  job.Await("TLS: no handshake, but other data");
  RawPeer truncated(job.port());
  CHECK(truncated.Send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8)));
  truncated.EndSending();
  truncated.AwaitClose();
  job.Await("TLS: the other side closed the connection during the handshake");
  CHECK(job.rejected() == before + 3);
}

// A certificate of the job does not replace its key.
TEST_CASE("a peer with a certificate and another key") {
  Authority authority;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1"));
  Job job;
  Key key = TestKey();
  key[0] ^= 1;
  PeerSocket socket;
  const Status status =
      tfdist::Connect(StrCat("127.0.0.1:", job.port()), false, key, Hello{1, 1, 0, {}},
                      Clock::now() + std::chrono::seconds(20), &socket);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "does not know this job's key");
}

TEST_CASE("a client with TLS at a plain port") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue("IP:127.0.0.1"));
  Job job;
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  PeerSocket socket;
  REQUIRE_OK(Dial(StrCat("127.0.0.1:", job.port()), false, deadline, &socket));
  REQUIRE_OK(TlsTransport::Dial(socket.fd.get(), credentials, "127.0.0.1", &socket.tls));
  const Status status = CompleteHandshake(socket, deadline);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "TLS: the other side is plain, and this side requires TLS");
  job.Await("TLS: the other side uses TLS, and this side is plain");
}

TEST_CASE("a plain client at a port with TLS") {
  Authority authority;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1"));
  Ranks ranks(2);
  REQUIRE_OK(Communicator::Create(0, 2, "127.0.0.1", 0, &ranks[0], false));
  std::vector<std::string> addresses = {StrCat("127.0.0.1:", ranks[0]->port()), "127.0.0.1:1"};
  std::thread server([&] {
    const Status status = ranks[0]->Connect(TestKey(), 1, addresses, 2);
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
    CHECK_CONTAINS(status.message(), "the last connection that was refused: 127.0.0.1:");
    CHECK_CONTAINS(status.message(), "TLS: the other side is plain, and this side requires TLS");
  });
  PeerSocket socket;
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  CHECK_OK(Dial(addresses[0], false, deadline, &socket));
  const Status status = Authenticate(socket, TestKey(), Hello{1, 1, 0, {}}, deadline);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "TLS: this side is plain, and the other side requires TLS");
  server.join();
}

int64_t ResidentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

TEST_CASE("ten thousand handshakes of garbage") {
  Authority authority;
  const Encrypted encrypted(authority.Issue("IP:127.0.0.1"));
  Job job;
  std::mt19937_64 random(3);
  const auto all = static_cast<uint64_t>(Rounds(10000));
  const int64_t before = ResidentKilobytes();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (uint64_t i = 0; i < all; ++i) {
    auto peer = std::make_unique<RawPeer>(job.port());
    // A ClientHello's beginning, at times with its right length, and random bytes.
    std::string bytes = std::string("\x16\x03\x01", 3);
    const size_t size = random() % 600;
    if (random() % 2 == 0) {
      bytes += {static_cast<char>(size >> 8), static_cast<char>(size), 1, 0};
    }
    for (size_t k = 0; k < size; ++k) bytes += static_cast<char>(random());
    peer->Send(bytes);
    if (random() % 2 == 0) {
      peer->EndSending();
      peer->AwaitClose();
    } else if (random() % 4 == 0) {
      silent.push_back(std::move(peer));
      if (silent.size() > 300) silent.erase(silent.begin());
    }
  }
  silent.clear();
  CHECK(Eventually([&] { return job.rejected() >= all; }));
  CHECK(job.lines().size() < 10000);
  const int64_t grown = ResidentKilobytes() - before;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  CHECK(grown < 2000 << 10);  // freed memory stays in quarantine
#else
  CHECK(grown < 100 << 10);
#endif
}

}  // namespace
}  // namespace tfdist::testing::tls_acceptor_test
