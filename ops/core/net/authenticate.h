// How the two ends of a data connection prove to each other that they know its key, without sending
// it: a challenge each, and a keyed hash of both (RFC 2104), so that what was recorded on another
// connection is worth nothing here.
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

// What the side that accepts, or the one that dials, sends to prove that it knows the key.
Digest AcceptorProof(const Key& key, const Hello& hello, const Nonce& challenge);
Digest DiallerProof(const Key& key, const Hello& hello, const Nonce& challenge);

// The dialling side, up to its PROOF: `hello`, whose nonce is chosen here. kUnavailable if the
// other side does not know the key.
Status Authenticate(const PeerSocket& socket, const Key& key, Hello hello, TimePoint deadline);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_NET_AUTHENTICATE_H_
