// The proofs of a connection, on both sides: the acceptor of a data port, and the dialling side.
//
// Input: up to four peers of an acceptor that send HELLOs and PROOFs, right ones, of other
// generations, altered, cut or of any bytes. Only a peer whose bytes were all right is accepted.
// Then the answer of an acceptor without the key to a dialling side, which never believes it.
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/net/acceptor.h"
#include "core/net/authenticate.h"
#include "core/net/event_loop.h"
#include "fuzz.h"
#include "peer.h"
#include "testing.h"

namespace tfdist::fuzz::handshake {
namespace {

constexpr uint64_t kGeneration = 5;
constexpr uint32_t kRank = 2, kRanks = 4;
constexpr int kPeers = 4;

class Port {
 public:
  explicit Port(Input* input) : input_(*input) {
    REQUIRE_OK(loop_.Create());
    Listener listener;
    REQUIRE_OK(Listener::Listen("127.0.0.1", 0, false, &listener));
    address_ = StrCat("127.0.0.1:", listener.port());
    acceptor_ = std::make_unique<Acceptor>(std::move(listener));
    acceptor_->Open(
        &loop_, testing::TestKey(), kGeneration, kRank, [](uint32_t rank) { return rank < kRanks; },
        [this](uint32_t rank, PeerSocket) { accepted_.push_back(rank); });
  }

  void Run() {
    while (input_.Below(16) != 0 && !input_.empty()) Step(&peers_[input_.Below(kPeers)]);
    Turn();
    CHECK(accepted_ == expected_);
    acceptor_->Close();
  }

 private:
  struct Peer {
    Fd socket;
    Hello hello;        // the last one
    std::string sent;   // all of its bytes
    std::string right;  // bytes of a HELLO that may be accepted, and of its PROOF
    Hello right_hello;  // that HELLO
    bool proves = false, accepted = false;
  };

  // Lets the acceptor read the arrived bytes.
  void Turn() {
    for (int i = 0; i < 2; ++i) {
      loop_.Wait(Clock::now(), [this](uint64_t tag, uint32_t) { acceptor_->OnReady(tag); });
    }
    acceptor_->CheckTime(Clock::now());
  }

  void Step(Peer* peer) {
    if (!peer->socket.valid()) {
      PeerSocket socket;
      CHECK_OK(Dial(address_, false, Clock::now() + std::chrono::seconds(10), &socket));
      *peer = Peer{};
      peer->socket = std::move(socket.fd);
      const linger hard{1, 0};  // thousands of connections leave no state in the kernel
      setsockopt(peer->socket.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
      return Turn();
    }
    switch (input_.Below(8)) {
      case 0:
        peer->socket.Reset();
        return Turn();
      case 1:
        return Put(peer, input_.Text(120));
      case 2:
      case 3:
      case 4:
        return SendHello(peer);
      default:
        return Prove(peer);
    }
  }

  void SendHello(Peer* peer) {
    peer->hello = {kGeneration, input_.Below(kRanks), kRank, Nonce{7}};
    switch (input_.Below(8)) {
      case 0:
        peer->hello.generation = input_.Number();
        break;
      case 1:
        peer->hello.rank = static_cast<uint32_t>(input_.Number());
        break;
      case 2:
        peer->hello.to = static_cast<uint32_t>(input_.Number());
        break;
    }
    const std::string frame = EncodeFrame(FrameType::kHello, Encode(peer->hello));
    const bool valid = peer->hello.generation == kGeneration && peer->hello.rank < kRanks &&
                       peer->hello.to == kRank;
    if (peer->sent.empty() && valid) {
      peer->right = Comparable(frame);
      peer->right_hello = peer->hello;
    }
    Put(peer, Altered(frame));
  }

  void Prove(Peer* peer) {
    const std::string challenge = ReceiveAll(peer->socket);
    Challenge received;
    const bool came = challenge.size() == kFrameHeaderBytes + kChallengeBytes;
    if (came) CHECK_OK(Decode(challenge.substr(kFrameHeaderBytes), &received));
    Digest proof = DiallerProof(testing::TestKey(), peer->hello, received.nonce);
    if (came && !peer->right.empty() && !peer->proves) {
      peer->right += Comparable(
          ProofFrame(DiallerProof(testing::TestKey(), peer->right_hello, received.nonce)));
      peer->proves = true;
    }
    // As the acceptor proves itself: that is no proof of a dialler.
    if (input_.Below(8) == 0) proof = received.proof;
    Put(peer, Altered(ProofFrame(proof)));
  }
  static std::string ProofFrame(const Digest& proof) {
    return EncodeFrame(FrameType::kProof, std::string(proof.begin(), proof.end()));
  }

  // A frame without the fields of its header that belong to collectives, and mean nothing here.
  static std::string Comparable(std::string frame) {
    for (size_t at = 0; at < frame.size(); ++at) {
      const size_t of_header = at % (kFrameHeaderBytes + kHelloBytes);
      const bool ignored = of_header == 6 || of_header == 7 || (of_header >= 24 && of_header < 48);
      if (ignored) frame[at] = 0;
    }
    return frame;
  }

  // In one case of four with another bit or shorter.
  std::string Altered(std::string frame) {
    if (input_.Below(4) != 0) return frame;
    const size_t at = input_.Below(256) % frame.size();
    if (input_.Bit()) {
      frame[at] = static_cast<char>(frame[at] ^ 1 << input_.Below(8));
    } else {
      frame.resize(at);
    }
    return frame;
  }

  void Put(Peer* peer, const std::string& bytes) {
    peer->sent += bytes;
    // Bytes behind a PROOF are not the acceptor's.
    if (peer->proves && !peer->accepted &&
        Comparable(peer->sent).compare(0, peer->right.size(), peer->right) == 0) {
      peer->accepted = true;
      expected_.push_back(peer->right_hello.rank);
    }
    const size_t cut = input_.Below(4) != 0 || bytes.empty() ? 0 : input_.Below(200) % bytes.size();
    Send(peer->socket, bytes.substr(0, cut));
    if (cut > 0) Turn();
    Send(peer->socket, bytes.substr(cut));
    Turn();
  }

  Input& input_;
  EventLoop loop_;
  std::string address_;
  std::unique_ptr<Acceptor> acceptor_;
  Peer peers_[kPeers];
  std::vector<uint32_t> expected_, accepted_;
};

// A server that does not know the key; it has answered before it was asked.
void Dialled(Input* input) {
  SocketPair sockets(false);
  std::string answer = input->Text(200);
  if (input->Bit()) {
    Challenge challenge{NewNonce(), Digest{1}};
    answer = EncodeFrame(FrameType::kChallenge, Encode(challenge)) + answer;
    if (input->Bit()) answer[input->Below(48)] ^= 1 << input->Below(8);
  }
  Send(sockets.theirs, answer);
  shutdown(sockets.theirs.get(), SHUT_WR);
  const TimePoint deadline = Clock::now() + std::chrono::seconds(10);
  const Status status =
      Authenticate(sockets.ours, testing::TestKey(), Hello{kGeneration, 3, kRank, {}}, deadline);
  CHECK((!status.ok() && !status.message().empty()));
}

void Run(Input input) {
  if (input.Bit()) Dialled(&input);
  Port(&input).Run();
}

FUZZ_TARGET(Run, AnyBytes);

}  // namespace
}  // namespace tfdist::fuzz::handshake
