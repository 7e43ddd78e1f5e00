// TLS between two transports, and the handshakes that each side refuses.
#include "core/net/tls/tls_transport.h"

#include <sys/socket.h>

#include <cstring>
#include <random>
#include <thread>

#include "core/net/tls/refusal_log.h"
#include "core/net/transport.h"
#include "net/certificates.h"

namespace tfdist::testing::tls_transport_test {
namespace {

constexpr char kHere[] = "IP:127.0.0.1";

// Two sockets, and a transport over each.
struct Pair {
  explicit Pair(const std::shared_ptr<const TlsCredentials>& of_dialler,
                const std::shared_ptr<const TlsCredentials>& of_acceptor,
                const std::string& host = "127.0.0.1") {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    fds[0] = Fd(ends[0]);
    fds[1] = Fd(ends[1]);
    REQUIRE_OK(TlsTransport::Dial(ends[0], of_dialler, host, &dialler));
    REQUIRE_OK(TlsTransport::Accept(ends[1], of_acceptor, &acceptor));
  }

  // Runs both handshakes to their ends; a connected side learns by a Read that it was refused.
  void Shake() {
    for (int i = 0; i < 20; ++i) {
      Step(*dialler, &of_dialler);
      Step(*acceptor, &of_acceptor);
    }
  }
  bool connected() const {
    return dialler->connected() && acceptor->connected() && of_dialler.ok() && of_acceptor.ok();
  }

  Fd fds[2];
  std::unique_ptr<TlsTransport> dialler, acceptor;
  Status of_dialler, of_acceptor;

 private:
  static void Step(TlsTransport& side, Status* status) {
    size_t none = 0;
    char byte;
    if (!status->ok()) return;
    *status = side.connected() ? side.Read({{&byte, 1}}, &none) : side.Handshake();
  }
};

std::string RandomBytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// `bytes` in up to 20 pieces, most of them small.
std::vector<iovec> Pieces(std::mt19937_64& random, const std::string& bytes, size_t from) {
  std::vector<iovec> pieces;
  for (size_t i = 0; i < 20 && from < bytes.size(); ++i) {
    const size_t limit = random() % 3 == 0 ? 100000 : 200;
    const size_t size = std::min(bytes.size() - from, random() % limit);
    pieces.push_back({const_cast<char*>(bytes.data()) + from, size});
    from += size;
  }
  return pieces;
}

TEST_CASE("bytes arrive in order") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue(kHere));
  std::mt19937_64 random(5);
  for (const uint64_t records_per_key : {uint64_t{1} << 20, uint64_t{3}}) {
    Pair pair(credentials, credentials);
    pair.Shake();
    REQUIRE(pair.connected());
    const int room = 20000;  // less than a Write seals
    REQUIRE(setsockopt(pair.fds[0].get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) == 0);
    TlsTransport& from = *pair.dialler;
    TlsTransport& to = *pair.acceptor;
    from.set_records_per_key(records_per_key);
    const std::string sent = RandomBytes(random, 3000000);
    std::string received(sent.size(), '\0');
    size_t taken = 0, arrived = 0;
    for (int idle = 0; arrived < sent.size() && idle < 1000; ++idle) {
      if (taken < sent.size()) taken += from.Write(Pieces(random, sent, taken));
      from.Flush();
      size_t part = 0;
      std::vector<iovec> room_for;
      for (size_t at = arrived; at < received.size() && room_for.size() < 5;) {
        const size_t size = std::min(received.size() - at, 1 + random() % 50000);
        room_for.push_back({received.data() + at, size});
        at += size;
      }
      REQUIRE_OK(to.Read(room_for, &part));
      arrived += part;
      if (part > 0) idle = 0;
    }
    CHECK(taken == sent.size());
    CHECK(!from.has_output());
    CHECK(received == sent);
    CHECK((from.key_updates() > 10) == (records_per_key == 3));
  }
}

// Bytes that were received with others do not make the socket readable.
TEST_CASE("received bytes are announced") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue(kHere));
  Pair pair(credentials, credentials);
  pair.Shake();
  REQUIRE(pair.connected());
  std::string sent(40000, 'x'), received(sent.size(), '\0');
  REQUIRE(pair.acceptor->Write({{sent.data(), sent.size()}}) == sent.size());
  CHECK(!pair.dialler->has_input());
  size_t part = 0;
  REQUIRE_OK(pair.dialler->Read({{received.data(), 1}}, &part));
  CHECK(part == 1);
  CHECK(pair.dialler->has_input());  // the rest of the first record
  REQUIRE_OK(pair.dialler->Read({{received.data() + 1, (16 << 10) - 1}}, &part));
  CHECK(pair.dialler->has_input());  // the second record
  REQUIRE_OK(pair.dialler->Read({{received.data() + (16 << 10), sent.size()}}, &part));
  CHECK(part == sent.size() - (16 << 10));
  CHECK(!pair.dialler->has_input());
}

TEST_CASE("the end of a connection") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue(kHere));
  Pair pair(credentials, credentials);
  pair.Shake();
  REQUIRE(pair.connected());
  std::string sent = "the last bytes", received(sent.size(), '\0');
  REQUIRE(pair.acceptor->Write({{sent.data(), sent.size()}}) == sent.size());
  pair.fds[1].Reset();
  size_t part = 0;
  REQUIRE_OK(pair.dialler->Read({{received.data(), received.size()}}, &part));
  CHECK(received == sent);
  const Status ended = pair.dialler->Read({{received.data(), 1}}, &part);
  CHECK_STATUS(ended, StatusCode::kUnavailable);
  CHECK(ended.message() == "the connection was closed");
}

TEST_CASE("an altered record ends the connection") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue(kHere));
  Pair pair(credentials, credentials), other(credentials, credentials);
  pair.Shake();
  other.Shake();
  REQUIRE((pair.connected() && other.connected()));
  std::string text = "from another connection";
  REQUIRE(other.acceptor->Write({{text.data(), text.size()}}) == text.size());
  char record[100];
  const ssize_t size = recv(other.fds[0].get(), record, sizeof(record), 0);
  REQUIRE(size > 0);
  REQUIRE(send(pair.fds[1].get(), record, static_cast<size_t>(size), 0) == size);
  size_t part = 0;
  const Status altered = pair.dialler->Read({{text.data(), 1}}, &part);
  CHECK_STATUS(altered, StatusCode::kUnavailable);
  CHECK_CONTAINS(altered.message(),
                 "TLS: the connection failed: decryption failed or bad record mac");
}

TEST_CASE("certificates that are refused") {
  Authority authority, other;
  const TlsFiles here = authority.Issue(kHere);
  TlsFiles named = here;
  named.fixed_name = "tfdist.job";
  TlsFiles misnamed = authority.Issue("DNS:tfdist.job");
  misnamed.fixed_name = "tfdist.job";
  struct Case {
    const char* what;
    TlsFiles dialler, acceptor;
    std::string host, of_dialler, of_acceptor;
  };
  const std::vector<Case> cases = {
      {"a dialling side of another authority", other.Issue(kHere), here, "127.0.0.1",
       "was not issued by this job's authority", "the other side refuses this one: "},
      {"an accepting side for another address", here, authority.Issue("IP:10.0.0.1"), "127.0.0.1",
       "is for IP Address:10.0.0.1, expected one for '127.0.0.1'",
       "the other side refuses this one: "},
      {"an accepting side for another host", here, authority.Issue("DNS:*.b.c,DNS:d"), "a.a.b.c",
       "is for DNS:*.b.c, DNS:d, expected one for 'a.a.b.c'", "the other side refuses this one: "},
      {"an accepting side without the fixed name", named, here, "127.0.0.1",
       "expected one for 'tfdist.job'", "the other side refuses this one: "},
      {"a dialling side without the fixed name", here, misnamed, "tfdist.job",
       "the other side refuses this one: ", "expected one for 'tfdist.job'"},
  };
  for (const Case& one : cases) {
    INFO(std::string(one.what));
    Pair pair(Credentials(one.dialler), Credentials(one.acceptor), one.host);
    pair.Shake();
    CHECK(!pair.connected());
    CHECK_CONTAINS(pair.of_dialler.message(), one.of_dialler);
    CHECK_CONTAINS(pair.of_acceptor.message(), one.of_acceptor);
  }
}

TEST_CASE("names that are accepted") {
  Authority authority;
  TlsFiles fixed = authority.Issue("DNS:tfdist.job");
  fixed.fixed_name = "tfdist.job";
  const auto several = authority.Issue("DNS:worker-0.jobs,DNS:*.pods.svc,IP:::1");
  const std::vector<std::pair<TlsFiles, std::string>> cases = {{fixed, "anything"},
                                                               {several, "worker-0.jobs"},
                                                               {several, "worker-1.pods.svc"},
                                                               {several, "::1"}};
  for (const auto& [files, host] : cases) {
    INFO(host);
    const auto credentials = Credentials(files);
    Pair pair(credentials, credentials, host);
    pair.Shake();
    CHECK_OK(pair.of_dialler);
    CHECK(pair.connected());
  }
}

TEST_CASE("a plain peer, and a peer that ends early") {
  Authority authority;
  const auto credentials = Credentials(authority.Issue(kHere));
  {
    Pair pair(credentials, credentials);
    const std::string frame = EncodeFrame(FrameType::kChallenge, "");
    REQUIRE(send(pair.fds[1].get(), frame.data(), frame.size(), 0) > 0);
    CHECK_CONTAINS(pair.dialler->Handshake().message(),
                   "the other side is plain, and this side requires TLS");
  }
  Pair pair(credentials, credentials);
  REQUIRE_OK(pair.dialler->Handshake());
  REQUIRE(shutdown(pair.fds[1].get(), SHUT_WR) == 0);
  CHECK_CONTAINS(pair.dialler->Handshake().message(),
                 "the other side closed the connection during the handshake");
}

// A connection outlives the credentials with which it began.
TEST_CASE("renewed files") {
  Authority former, latter;
  const auto first = Credentials(former.Issue(kHere));
  SetTlsCredentials(first);
  Pair old(CurrentTlsCredentials(), CurrentTlsCredentials());
  old.Shake();
  REQUIRE(old.connected());
  const Encrypted renewed(latter.Issue(kHere));
  Pair next(CurrentTlsCredentials(), CurrentTlsCredentials());
  next.Shake();
  CHECK(next.connected());
  Pair mixed(first, CurrentTlsCredentials());
  mixed.Shake();
  CHECK(!mixed.connected());
  char sent = 'x', received = 0;
  size_t part = 0;
  CHECK(old.dialler->Write({{&sent, 1}}) == 1);
  CHECK_OK(old.acceptor->Read({{&received, 1}}, &part));
  CHECK(received == 'x');
}

TEST_CASE("files that cannot be used") {
  Authority authority, other;
  const TlsFiles good = authority.Issue(kHere);
  const auto message = [](const TlsFiles& files) {
    std::shared_ptr<const TlsCredentials> credentials;
    const Status status = TlsCredentials::Create(files, &credentials);
    CHECK_STATUS(status, StatusCode::kInvalidArgument);
    CHECK(credentials == nullptr);
    return status.message();
  };
  TlsFiles files = good;
  files.certificate = "garbage";
  CHECK_CONTAINS(message(files), "expected a certificate in PEM, received 7 bytes");
  files = good;
  files.key = other.Issue(kHere).key;
  CHECK_CONTAINS(message(files), "the private key does not fit the certificate of 'CN = worker'");
  files.key = good.key.substr(0, good.key.size() / 2);
  CHECK_CONTAINS(message(files), "expected a private key in PEM");
  files = good;
  files.authority = "";
  CHECK_CONTAINS(message(files), "expected certificates of an authority in PEM");
  files.authority = other.Read("ca.pem");
  CHECK_CONTAINS(message(files), "was not issued by this job's authority");
  CHECK_CONTAINS(message(authority.Issue(kHere, "20200101000000Z", "20210203040506Z")),
                 "expired on 2021-02-03 04:05:06 UTC");
  CHECK_CONTAINS(message(authority.Issue(kHere, "20980101000000Z", "20990101000000Z")),
                 "is not valid before 2098-01-01 00:00:00 UTC");
  CHECK_CONTAINS(message(authority.Issue(kHere, "20200101000000Z", "20991231000000Z",
                                         "extendedKeyUsage=serverAuth")),
                 "as a client");
  authority.Run("openssl ec -in own.key -aes128 -passout pass:secret -out locked.key");
  files = good;
  files.key = authority.Read("locked.key");
  CHECK_CONTAINS(message(files), "a private key in PEM without a password");
}

TEST_CASE("a library that cannot be used") {
  const openssl::Functions* functions = nullptr;
  const Status none = openssl::Load(&functions, "libssl-missing.so.3");
  CHECK_STATUS(none, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(none.message(), "TLS needs OpenSSL 3: libssl-missing.so.3");
  const Status other = openssl::Load(&functions, "libm.so.6");
  CHECK_CONTAINS(other.message(), "libm.so.6 has no function OpenSSL_version_num");
}

TEST_CASE("a log of refusals stays short") {
  std::vector<std::string> lines;
  RefusalLog log([&](const std::string& line) { lines.push_back(line); });
  const TimePoint start = Clock::now();
  for (int i = 0; i < 10000; ++i) log.Note(StrCat("10.0.0.1:", i), 5000, "garbage", start);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "tfdist: refused 10.0.0.1:0 at data port 5000: garbage\n");
  log.Note("10.0.0.2:1", 5000, "expired", start);
  CHECK(lines.size() == 2);
  log.Note("10.0.0.1:1", 5000, "garbage", start + RefusalLog::kInterval);
  REQUIRE(lines.size() == 3);
  CHECK_CONTAINS(lines[2], "garbage (9999 more since the last such line)");
  for (int i = 0; i < 10000; ++i) log.Note("10.0.0.1:1", 5000, StrCat("reason ", i), start);
  CHECK(lines.size() <= 3 + RefusalLog::kMaxReasons + 1);
}

}  // namespace
}  // namespace tfdist::testing::tls_transport_test
