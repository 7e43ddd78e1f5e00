// TLS: the bytes of a peer before, within and behind the handshake.
//
// Input: a bit, and then one of two. A peer without a certificate sends any bytes to an accepting
// side, which never connects; ClientHellos to begin with are among the seeds. Or two of our own
// sides shake hands and write, and their bytes are passed on intact, cut, altered, repeated, with
// others in between, or not at all. Each side receives a prefix of the other one's writes; with an
// intact handshake they connect; and a side that has failed says why, and stays failed.
#include <sys/socket.h>

#include <cctype>
#include <memory>
#include <string>
#include <vector>

#include "core/net/tls/tls_transport.h"
#include "fuzz.h"
#include "net/certificates.h"
#include "peer.h"
#include "testing.h"

namespace tfdist::fuzz::tls {
namespace {

constexpr char kHost[] = "127.0.0.1";

const std::shared_ptr<const TlsCredentials>& OurCredentials() {
  static const auto* const credentials = new std::shared_ptr<const TlsCredentials>(
      testing::Credentials(testing::Authority().Issue("IP:127.0.0.1")));
  return *credentials;
}

// One end of a connection; `wire` is the other end of its socket.
class Side {
 public:
  explicit Side(bool dials) : sockets_(false) {
    const int fd = sockets_.ours.fd.get();
    REQUIRE_OK(dials ? TlsTransport::Dial(fd, OurCredentials(), kHost, &transport_)
                     : TlsTransport::Accept(fd, OurCredentials(), &transport_));
  }

  const Fd& wire() const { return sockets_.theirs; }
  void EndWire() { sockets_.theirs.Reset(); }
  bool connected() const { return transport_->connected() && status_.ok(); }
  const std::string& written() const { return written_; }
  const std::string& received() const { return received_; }
  const Status& status() const { return status_; }

  // The calls of an owner whose socket is readable.
  void Turn() {
    if (!transport_->connected()) {
      const Status status = transport_->Handshake();
      CHECK((status_.ok() || !status.ok()));
      if (!status.ok()) Fail(status);
      if (!transport_->connected()) return;
    }
    for (size_t part = 1; part > 0;) {
      char bytes[700];
      const Status status = transport_->Read({{bytes, 100}, {bytes + 100, 600}}, &part);
      CHECK((status_.ok() || (!status.ok() && part == 0)));
      received_.append(bytes, part);
      if (!status.ok()) return Fail(status);
    }
    CHECK(!transport_->has_input());
    transport_->Flush();
  }

  void Write(const std::string& bytes) {
    const size_t half = bytes.size() / 2;
    char* const data = const_cast<char*>(bytes.data());
    const size_t taken = transport_->Write({{data, half}, {data + half, bytes.size() - half}});
    CHECK((taken == 0 || connected()));
    written_ += bytes.substr(0, taken);
  }

 private:
  void Fail(const Status& status) {
    CHECK(!status.message().empty());
    for (const char c : status.message()) CHECK(std::isprint(static_cast<unsigned char>(c)) != 0);
    status_ = status;
  }

  SocketPair sockets_;
  std::unique_ptr<TlsTransport> transport_;
  Status status_;
  std::string written_, received_;
};

// The network between two sides.
class Network {
 public:
  explicit Network(Input* input) : input_(*input) {}

  void Run() {
    for (int step = 0; step < 64 && !input_.empty(); ++step) {
      for (Side* const side : {&dialler_, &acceptor_}) side->Turn();
      if (input_.Below(4) == 1) WriteSome();
      Pass(dialler_, acceptor_);
      Pass(acceptor_, dialler_);
      Check();
    }
    for (int step = 0; step < 8; ++step) {
      for (Side* const side : {&dialler_, &acceptor_}) side->Turn();
      Send(acceptor_.wire(), ReceiveAll(dialler_.wire()));
      Send(dialler_.wire(), ReceiveAll(acceptor_.wire()));
    }
    Check();
    if (altered_) return;
    CHECK((dialler_.connected() && acceptor_.connected()));
    CHECK(
        (dialler_.received() == acceptor_.written() && acceptor_.received() == dialler_.written()));
  }

 private:
  void WriteSome() {
    Side& side = input_.Bit() ? dialler_ : acceptor_;
    side.Write(std::string(input_.Number() % 70000, static_cast<char>(input_.Take<uint8_t>())));
  }

  void Check() const {
    const auto begins = [](const std::string& whole, const std::string& part) {
      return whole.compare(0, part.size(), part) == 0;
    };
    CHECK(begins(dialler_.written(), acceptor_.received()));
    CHECK(begins(acceptor_.written(), dialler_.received()));
  }

  void Pass(const Side& from, Side& to) {
    const std::string sent = ReceiveAll(from.wire());
    std::string passed = sent;
    const size_t at = passed.empty() ? 0 : input_.Below(60000) % passed.size();
    switch (passed.empty() ? 0 : input_.Below(16)) {
      case 1:
        passed[at] = static_cast<char>(passed[at] ^ 1 << input_.Below(8));
        break;
      case 2:
        passed.insert(at, input_.Text(100));
        break;
      case 3:
        passed.erase(at, 1 + input_.Below(200));
        break;
      case 4:
        passed += passed.substr(at);
        break;
      case 5:
        passed.resize(at);
        Send(to.wire(), passed);
        to.EndWire();
        altered_ = true;
        return;
      case 6:  // in two parts
        Send(to.wire(), passed.substr(0, at));
        to.Turn();
        Send(to.wire(), passed.substr(at));
        return;
    }
    Send(to.wire(), passed);
    altered_ |= passed != sent;
  }

  Input& input_;
  Side dialler_{true}, acceptor_{false};
  bool altered_ = false;
};

// A stranger, whose parts come one by one.
void Stranger(Input* input) {
  Side side(input->Bit());
  for (int part = 0; part < 16 && !input->empty(); ++part) {
    const bool is_last = input->Below(4) == 0;
    Send(side.wire(), is_last ? input->Rest() : input->Text(300));
    side.Turn();
    ReceiveAll(side.wire());
    CHECK(!side.connected());
  }
  side.EndWire();
  side.Turn();
  CHECK_STATUS(side.status(), StatusCode::kUnavailable);
}

void Run(Input input) {
  if (input.Bit()) return Stranger(&input);
  Network(&input).Run();
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = AnyBytes();
  Side dialler(true);
  dialler.Turn();
  const std::string hello = ReceiveAll(dialler.wire());
  const auto bytes = [](std::vector<int> values) {
    return std::string(values.begin(), values.end());
  };
  seeds.push_back(bytes({1, 0, 0}) + hello);                             // to an accepting side
  seeds.push_back(bytes({1, 0, 1, 3, 50}) + hello);                      // cut
  seeds.push_back(bytes({1, 1, 0, 0x15, 3, 3, 0, 2, 2}) + bytes({70}));  // an alert
  seeds.push_back(bytes({0}));                                           // intact
  // Intact for three steps; then each side writes, and a byte changes.
  const std::string intact = bytes({0, 0, 0, 0, 0, 0, 0});
  seeds.push_back(bytes({0}) + intact + intact + intact + bytes({1, 1, 90, 7, 0, 9, 1, 3}));
  return seeds;
}

FUZZ_TARGET(Run, Seeds);

}  // namespace
}  // namespace tfdist::fuzz::tls
