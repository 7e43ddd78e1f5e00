// The way from a request handler to connections that other threads own.
#ifndef TFDIST_OPS_CORE_PS_SERVER_REPLY_CHANNEL_H_
#define TFDIST_OPS_CORE_PS_SERVER_REPLY_CHANNEL_H_

#include <cstdint>

#include "core/ps/server/request.h"

namespace tfdist::ps {

// Any thread may call it.
class ReplyChannel {
 public:
  virtual ~ReplyChannel() = default;
  // Neither has an effect if the session has ended.
  virtual void Deliver(uint64_t session, Answer answer) = 0;
  virtual void Disconnect(uint64_t session) = 0;
  // The next deadline is earlier than the timer's.
  virtual void WakeTimer() = 0;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_REPLY_CHANNEL_H_
