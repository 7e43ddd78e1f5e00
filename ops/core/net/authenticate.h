// Mutual authentication of the two ends of a data connection. Each end proves that it knows the key
// without sending it: a challenge from each side, and a keyed hash of both (RFC 2104). A recorded
// handshake cannot be replayed on another connection.
//
//     dialling side                                  accepting side
//     HELLO (generation, rank, to, nonce)    ->
//                                            <-      CHALLENGE (nonce, proof)
//     PROOF                                  ->
//                                            <-      WELCOME
#ifndef TFDIST_OPS_CORE_NET_AUTHENTICATE_H_
#define TFDIST_OPS_CORE_NET_AUTHENTICATE_H_

#include "core/base/status.h"
#include "core/net/frame.h"
#include "core/net/socket.h"

namespace tfdist {

Nonce NewNonce();

// The proofs of the accepting and of the dialling side.
Digest AcceptorProof(const Key& key, const Hello& hello, const Nonce& challenge);
Digest DiallerProof(const Key& key, const Hello& hello, const Nonce& challenge);

// Runs the handshake of the dialling side up to its PROOF, and chooses the nonce of `hello`.
// kUnavailable if the other side does not know the key.
Status Authenticate(const PeerSocket& socket, const Key& key, Hello hello, TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_AUTHENTICATE_H_
