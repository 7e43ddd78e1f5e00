#include "core/net/authenticate.h"

#include <sys/random.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "core/base/fields.h"
#include "core/net/frame.h"

namespace tfdist {
namespace {

Digest Proof(const char* side, const Key& key, const Hello& hello, const Nonce& challenge) {
  const std::string message =
      StrCat("tfdist data connection, ", side, '\0') + Encode(hello) +
      std::string(reinterpret_cast<const char*>(challenge.data()), challenge.size());
  return HmacSha256({reinterpret_cast<const char*>(key.data()), key.size()}, message);
}

Status PlainToTls() {
  return Status(StatusCode::kUnavailable,
                "TLS: this side is plain, and the other side requires TLS");
}

}  // namespace

std::string Encode(const Hello& hello) { return EncodeFields(hello); }

Status Decode(std::string_view bytes, Hello* hello) {
  return DecodeFields(bytes, "HELLO frame", hello);
}

std::string Encode(const Challenge& challenge) { return EncodeFields(challenge); }

Status Decode(std::string_view bytes, Challenge* challenge) {
  return DecodeFields(bytes, "CHALLENGE frame", challenge);
}

Nonce NewNonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    std::random_device device;
    for (uint8_t& byte : nonce) byte = static_cast<uint8_t>(device());
  }
  return nonce;
}

Digest AcceptorProof(const Key& key, const Hello& hello, const Nonce& challenge) {
  return Proof("acceptor", key, hello, challenge);
}

Digest DiallerProof(const Key& key, const Hello& hello, const Nonce& challenge) {
  return Proof("dialler", key, hello, challenge);
}

Status AcceptorHandshake::Begin(const Key& key, std::string_view hello, std::string* challenge) {
  if (Status s = Decode(hello, &hello_); !s.ok()) return s;
  const Nonce nonce = NewNonce();
  expected_ = DiallerProof(key, hello_, nonce);
  *challenge = Encode(Challenge{nonce, AcceptorProof(key, hello_, nonce)});
  return Status();
}

bool AcceptorHandshake::Verify(std::string_view proof) const {
  Digest received;
  if (proof.size() != received.size()) return false;
  std::copy(proof.begin(), proof.end(), received.begin());
  return SameDigest(received, expected_);
}

Status Authenticate(const PeerSocket& socket, const Key& key, Hello hello, TimePoint deadline) {
  hello.nonce = NewNonce();
  const std::string greeting = EncodeFrame(FrameType::kHello, Encode(hello));
  if (Status s = SendAll(socket, greeting.data(), greeting.size(), deadline); !s.ok()) return s;
  std::array<char, kFrameHeaderBytes + kChallengeBytes> bytes{};
  if (Status s = ReceiveAll(socket, bytes.data(), bytes.size(), deadline); !s.ok()) {
    return socket.tls == nullptr && bytes[0] == kTlsAlert ? PlainToTls() : s;
  }
  FrameHeader header;
  if (Status s = Decode(bytes.data(), LimitsOfConnection, &header); !s.ok()) return s;
  if (!header.Is(FrameType::kChallenge) || header.meta_bytes != kChallengeBytes) {
    return Status(StatusCode::kInternal, StrCat("expected a CHALLENGE, received a frame of type ",
                                                static_cast<int>(header.type)));
  }
  Challenge challenge;
  const std::string_view payload(bytes.data() + kFrameHeaderBytes, kChallengeBytes);
  if (Status s = Decode(payload, &challenge); !s.ok()) return s;
  if (!SameDigest(challenge.proof, AcceptorProof(key, hello, challenge.nonce))) {
    return Status(StatusCode::kUnavailable,
                  "the other side does not know this job's key: it is of another job");
  }
  const Digest proof = DiallerProof(key, hello, challenge.nonce);
  const std::string answer =
      EncodeFrame(FrameType::kProof, std::string(proof.begin(), proof.end()));
  return SendAll(socket, answer.data(), answer.size(), deadline);
}

}  // namespace tfdist
