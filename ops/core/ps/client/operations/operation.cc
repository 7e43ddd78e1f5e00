#include "core/ps/client/operations/operation.h"

#include <algorithm>

namespace tfdist::ps {

Request& Operation::To(int server, MessageType type) {
  const auto at =
      std::find_if(requests_.begin(), requests_.end(),
                   [server](const RequestPtr& request) { return request->server >= server; });
  if (at != requests_.end() && (*at)->server == server) return **at;
  auto request = std::make_shared<Request>();
  request->server = server;
  request->type = type;
  return **requests_.insert(at, std::move(request));
}

void Operation::Append(Request* request, const void* data, size_t bytes,
                       std::shared_ptr<void> owner) {
  if (bytes == 0) return;
  request->payload.push_back({const_cast<void*>(data), bytes});
  request->owners.push_back(std::move(owner));
}

void Operation::Mention(const std::string& name) {
  if (subjects_++ == 0) first_subject_ = name;
}

std::string Operation::Subjects() const {
  return subjects_ < 2 ? first_subject_ : StrCat(first_subject_, " and ", subjects_ - 1, " more");
}

Status PlainOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                                uint64_t payload_bytes, std::vector<iovec>*) {
  if (meta.empty() && payload_bytes == 0) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat("expected no more than an OK to ", title(), ", received ", meta.size(),
                       " + ", payload_bytes, " bytes"));
}

}  // namespace tfdist::ps
