#include "core/net/transport.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tfdist {

Status EndOfStream() { return Status(StatusCode::kUnavailable, "the connection was closed"); }

size_t PlainTransport::Write(const std::vector<iovec>& pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t written;
  do {
    written = sendmsg(fd_, &message, MSG_NOSIGNAL);
  } while (written < 0 && errno == EINTR);
  return written < 0 ? 0 : static_cast<size_t>(written);
}

Status PlainTransport::Read(const std::vector<iovec>& pieces, size_t* received) {
  ssize_t read;
  do {
    read = readv(fd_, pieces.data(), static_cast<int>(pieces.size()));
  } while (read < 0 && errno == EINTR);
  if (read == 0) return EndOfStream();
  if (read < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
    return Status(StatusCode::kUnavailable, StrCat("cannot receive: ", std::strerror(errno)));
  }
  *received = read < 0 ? 0 : static_cast<size_t>(read);
  return Status();
}

}  // namespace tfdist
