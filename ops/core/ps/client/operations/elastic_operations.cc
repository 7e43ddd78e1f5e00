#include "core/ps/client/operations/elastic_operations.h"

#include <utility>

namespace tfdist::ps {

ResolveOperation::ResolveOperation(ResolveRequest resolve, int servers, Done done)
    : PlainOperation(Kind::kOther, StrCat("generation ", resolve.next.generation), std::move(done)),
      resolve_(std::move(resolve)),
      replies_(servers) {
  for (int server = 0; server < servers; ++server) To(server, MessageType::kResolve);
}

Status ResolveOperation::Meta(const Request&, const ServerView&, std::string* meta) {
  *meta = Encode(resolve_);
  return Status();
}

Status ResolveOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                  uint64_t payload_bytes, std::vector<iovec>*) {
  if (payload_bytes != 0) return InvalidArgument("an answer to a generation has no payload");
  return Decode(meta, &replies_[request.server]);
}

Status ResolveOperation::OnPayload(const Request& request) {
  const ResolveReply& reply = replies_[request.server];
  if (!reply.refused) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("ps ", request.server, " serves generation ", reply.generation,
                       " of the job, and this worker is in generation ", resolve_.next.generation));
}

CommitOperation::CommitOperation(CommitRequest commit, int servers, Done done)
    : Operation(Kind::kOther, StrCat("the commit of unit ", commit.unit.number)),
      commit_(commit),
      done_(std::move(done)) {
  for (int server = 0; server < servers; ++server) To(server, MessageType::kCommit);
}

Status CommitOperation::Meta(const Request&, const ServerView&, std::string* meta) {
  *meta = Encode(commit_);
  return Status();
}

Status CommitOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>*) {
  CommitReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (payload_bytes != 0) return InvalidArgument("an answer to a commit has no payload");
  outcome_.open = outcome_.open || reply.open;
  outcome_.lost = outcome_.lost || reply.lost;
  return Status();
}

}  // namespace tfdist::ps
