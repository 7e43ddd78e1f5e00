// Operations of a member of an elastic job; see server/elastic_schedule.h.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ELASTIC_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ELASTIC_OPERATIONS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ps/client/operations/operation.h"

namespace tfdist::ps {

// Tells all servers the members of a generation.
class ResolveOperation : public PlainOperation {
 public:
  // Ends with kFailedPrecondition if a server knows a later generation.
  ResolveOperation(ResolveRequest resolve, int servers, Done done);

  Status Meta(const Request&, const ServerView&, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  Status OnPayload(const Request& request) override;

 private:
  const ResolveRequest resolve_;
  std::vector<ResolveReply> replies_;  // by server
};

// The servers' state of a unit that the worker has committed.
struct CommitOutcome {
  bool open = false;  // on some server, where other members have not committed it yet
  bool lost = false;  // by some server, which was started again
};

// Tells all servers that the worker has done a unit of work.
class CommitOperation : public Operation {
 public:
  using Done = std::function<void(const Status&, const CommitOutcome&)>;

  CommitOperation(CommitRequest commit, int servers, Done done);

  Status Meta(const Request&, const ServerView&, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;
  void OnEnd(const Status& status) override { std::exchange(done_, nullptr)(status, outcome_); }

 private:
  const CommitRequest commit_;
  CommitOutcome outcome_;
  Done done_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_ELASTIC_OPERATIONS_H_
