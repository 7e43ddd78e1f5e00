// What becomes of the operations that the client's thread carries out.
#include <algorithm>
#include <utility>

#include "core/ps/client/client_thread.h"

namespace tfdist::ps {

using Kind = Operation::Kind;

// In order: whatever comes behind an operation that has to wait waits too.
void ClientThread::BeginWaiting() {
  while (!waiting_.empty()) {
    const OperationPtr operation = waiting_.front();
    if (operation->kind() == Kind::kPull && pull_ != nullptr) return;
    if (operation->kind() == Kind::kPush && push_ != nullptr) return;
    if (operation->kind() == Kind::kEdit && edit_ != nullptr) return;
    waiting_.pop_front();
    Begin(operation);
  }
}

void ClientThread::Begin(const OperationPtr& operation) {
  if (operation->kind() == Kind::kPush) push_ = operation;
  if (operation->kind() == Kind::kEdit) edit_ = operation;
  if (operation->kind() == Kind::kPull) {
    pull_ = operation;
    operation->status = TakePushFailure();
  }
  if (operation->status.ok()) operation->open = operation->requests();
  const std::vector<RequestPtr> requests = operation->open;
  for (const RequestPtr& request : requests) {
    request->operation = operation;
    request->id = next_number_++;
    remotes_[request->server].unanswered.emplace(request->id, request);
  }
  for (const RequestPtr& request : requests) {
    if (request->operation != nullptr) Send(request);  // else an earlier one has failed
  }
  if (requests.empty()) EndIfSettled(operation);
}

// If the server has no connection, the next one will send it.
void ClientThread::Send(const RequestPtr& request) {
  Remote& remote = remotes_[request->server];
  const bool leaving = request->operation->kind() == Kind::kLeave;
  Status status = remote.given_up;
  std::string meta;
  if (status.ok() && remote.connection != nullptr) {
    status = request->operation->Meta(*request, remote.view, &meta);
  }
  if (!status.ok() || (leaving && remote.connection == nullptr)) {
    remote.unanswered.erase(request->id);
    return Settle(request, leaving ? Status() : status);
  }
  if (remote.connection == nullptr) return;
  remote.connection->Queue(request->type, request->id, meta, request->payload, request);
  request->sent = true;
  request->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(timeout_seconds_));
}

// The operation waits for this request no more: it was answered, or it failed.
void ClientThread::Settle(const RequestPtr& request, const Status& status) {
  const OperationPtr operation = std::exchange(request->operation, nullptr);
  if (operation == nullptr) return;
  std::vector<RequestPtr>& open = operation->open;
  open.erase(std::remove(open.begin(), open.end(), request), open.end());
  if (!status.ok()) Fail(operation, status);
  EndIfSettled(operation);
}

// Remembers the first failure, and waits only for answers that are just coming in: into memory that
// the caller may use as soon as the operation has ended. A push is carried on on other servers.
void ClientThread::Fail(const OperationPtr& operation, const Status& status) {
  if (!operation->status.ok()) return;
  operation->status = status;
  if (operation->kind() == Kind::kPush) return NotePushFailure(status);
  std::vector<RequestPtr> receiving;
  for (const RequestPtr& request : operation->open) {
    Remote& remote = remotes_[request->server];
    if (request->receiving) {
      receiving.push_back(request);
      continue;
    }
    request->operation = nullptr;
    if (!request->sent) remote.unanswered.erase(request->id);
    // The server has to forget that it was asked.
    if (request->sent && request->exclusive) remote.stale = true;
  }
  operation->open = std::move(receiving);
}

void ClientThread::EndIfSettled(const OperationPtr& operation) {
  if (!operation->open.empty()) return;
  if (pull_ == operation) pull_ = nullptr;
  if (push_ == operation) push_ = nullptr;
  if (edit_ == operation) edit_ = nullptr;
  operation->OnEnd(operation->status);
  if (operation->kind() == Kind::kPush) NotePushEnd();
}

void ClientThread::NotePushEnd() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --open_pushes_;
  }
  changed_.notify_all();
}

// The pull that is under way fails, or the next.
void ClientThread::NotePushFailure(const Status& status) {
  if (pull_ != nullptr && pull_->status.ok()) {
    const OperationPtr pull = pull_;
    Fail(pull, status);
    return EndIfSettled(pull);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    push_failure_ = status;
  }
  changed_.notify_all();
}

Status ClientThread::TakePushFailure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(push_failure_, Status());
}

std::string ClientThread::ServersOwingPushes() const {
  std::string servers;
  for (size_t server = 0; server < remotes_.size(); ++server) {
    for (const auto& [number, request] : remotes_[server].unanswered) {
      if (request->type != MessageType::kPush) continue;
      servers += StrCat(servers.empty() ? "" : ", ", "ps ", server);
      break;
    }
  }
  return servers;
}

std::string ClientThread::Waiting(double seconds) {
  std::string text;
  const Status ignored = Ask([&] {
    const TimePoint now = Clock::now();
    double longest = seconds;
    for (const Remote& remote : remotes_) {
      for (const auto& [number, request] : remote.unanswered) {
        if (request->operation == nullptr || !request->sent) continue;
        const TimePoint sent =
            request->deadline - std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(timeout_seconds_));
        const double waited = std::chrono::duration<double>(now - sent).count();
        if (waited < longest) continue;
        longest = waited;
        text = StrCat("ps ", request->server, " has not answered to ", request->operation->title(),
                      " for ", static_cast<int>(waited), " s");
      }
    }
    return Status();
  });
  return text;
}

void ClientThread::CheckDeadlines() {
  const TimePoint now = Clock::now();
  std::vector<RequestPtr> late;
  for (const Remote& remote : remotes_) {
    for (const auto& [number, request] : remote.unanswered) {
      if (request->operation != nullptr && request->deadline <= now) late.push_back(request);
    }
  }
  for (const RequestPtr& request : late) {
    if (request->operation == nullptr) continue;
    const Status status(StatusCode::kDeadlineExceeded,
                        StrCat("ps ", request->server, ": no answer to ",
                               request->operation->title(), " within ", timeout_seconds_, " s"));
    const OperationPtr operation = request->operation;
    if (operation->kind() == Kind::kPush) {
      Settle(request, status);
      continue;
    }
    Fail(operation, status);
    EndIfSettled(operation);
    if (request->receiving) Lose(request->server);
  }
}

void ClientThread::CancelAll(const Status& status) {
  std::vector<OperationPtr> operations(waiting_.begin(), waiting_.end());
  waiting_.clear();
  for (size_t server = 0; server < remotes_.size(); ++server) {
    Drop(static_cast<int>(server));
    for (const auto& [number, request] : std::exchange(remotes_[server].unanswered, {})) {
      OperationPtr operation = std::exchange(request->operation, nullptr);
      if (std::find(operations.begin(), operations.end(), operation) == operations.end()) {
        operations.push_back(std::move(operation));
      }
    }
  }
  for (const OperationPtr& operation : operations) {
    operation->open.clear();
    if (operation->status.ok()) operation->status = status;
    EndIfSettled(operation);
  }
}

Status ClientThread::OnAnswer(int server, const MessageHeader& header, std::string_view meta,
                              std::vector<iovec>* target) {
  Remote& remote = remotes_[server];
  const auto found = remote.unanswered.find(header.number);
  if (found == remote.unanswered.end() || !found->second->sent) {
    return Status(StatusCode::kInvalidArgument, "an answer to what was not asked");
  }
  Request& request = *found->second;
  if (header.type == MessageType::kError) {
    ErrorReply reply;
    if (Status s = Decode(meta, &reply); !s.ok()) return s;
    request.refusal = Status(reply.code, StrCat("ps ", server, ": ", reply.message));
  } else if (header.type == MessageType::kResend && header.payload_bytes == 0) {
    return Status();
  } else if (header.type != MessageType::kOk) {
    return Status(StatusCode::kInvalidArgument, "an answer of no known kind");
  }
  if (request.operation == nullptr) return Status();
  if (request.refusal.ok()) {
    if (Status s =
            request.operation->OnAnswer(request, &remote.view, meta, header.payload_bytes, target);
        !s.ok()) {
      return s;
    }
  }
  request.receiving = true;
  return Status();
}

// The server cannot read what the request lends, such as memory that a device driver has mapped.
void ClientThread::Resend(int server, const RequestPtr& request) {
  remotes_[server].connection->StopLending();
  if (request->operation != nullptr) return Send(request);
  remotes_[server].unanswered.erase(request->id);
}

Status ClientThread::OnPayload(int server, const MessageHeader& header) {
  Remote& remote = remotes_[server];
  const auto found = remote.unanswered.find(header.number);
  if (found == remote.unanswered.end()) return Status();
  const RequestPtr request = found->second;
  if (header.type == MessageType::kResend) {
    Resend(server, request);
    return Status();
  }
  remote.unanswered.erase(found);
  request->receiving = false;
  Status status = request->refusal;
  if (status.ok() && request->operation != nullptr) {
    status = request->operation->OnPayload(*request);
  }
  Settle(request, status);
  return Status();
}

}  // namespace tfdist::ps
