#include "core/ps/client/client_thread.h"

#include <algorithm>
#include <future>
#include <utility>

namespace tfdist::ps {
namespace {

using Kind = Operation::Kind;

// The flight recorder's description of a request.
Event EventOf(const Request& request, const Operation& operation) {
  Event event;
  event.kind = EventKind::kRequest;
  event.number = request.id;
  event.peer = request.server;
  for (const iovec& piece : request.payload) event.bytes += piece.iov_len;
  SetText(event.operation, Name(request.type));
  SetText(event.name, operation.title());
  SetText(event.detail, operation.Subjects());
  return event;
}

Status Closed() { return Status(StatusCode::kCancelled, "the client was closed"); }

}  // namespace

Status ClientThread::Create(int servers, double timeout_seconds,
                            std::unique_ptr<ClientThread>* out) {
  std::unique_ptr<ClientThread> made(new ClientThread(servers, timeout_seconds));
  if (Status s = made->loop_.Create(); !s.ok()) return s;
  made->thread_ = std::thread([thread = made.get()] { thread->Run(); });
  *out = std::move(made);
  return Status();
}

ClientThread::ClientThread(int servers, double timeout_seconds)
    : timeout_seconds_(timeout_seconds), remotes_(servers) {
  for (Remote& remote : remotes_) remote.thread = this;
}

ClientThread::~ClientThread() { Close(); }

void ClientThread::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closing_, true)) return;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  Post([this] { stop_ = true; });
  thread_.join();
}

bool ClientThread::Post(std::function<void()> command) {
  if (!commands_.Push(std::move(command))) return false;
  loop_.Wake();
  return true;
}

Status ClientThread::Ask(const std::function<Status()>& question) {
  std::promise<Status> answer;
  std::future<Status> waiting = answer.get_future();
  if (!Post([&] { answer.set_value(question()); })) return Closed();
  return waiting.get();
}

void ClientThread::Submit(OperationPtr operation) {
  const bool push = operation->kind() == Operation::Kind::kPush;
  if (push) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++open_pushes_;
  }
  if (Post([this, operation] { waiting_.push_back(operation); })) return;
  if (push) NotePushEnd();
  operation->OnEnd(Closed());
}

Status ClientThread::Disconnect(int server, ServerView* view) {
  return Ask([&] {
    Drop(server);
    *view = remotes_[server].view;
    return remotes_[server].given_up;
  });
}

Status ClientThread::Adopt(int server, PeerSocket socket, const std::string& welcome,
                           const ServerView& view) {
  return Ask([&] {
    Remote& remote = remotes_[server];
    if (stop_) return Closed();
    if (!remote.given_up.ok()) return remote.given_up;
    Drop(server);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      lost_.erase(std::remove(lost_.begin(), lost_.end(), server), lost_.end());
    }
    remote.view = view;
    remote.stream = std::make_unique<MessageStream>(std::move(socket), MessageStreamOptions());
    if (Status s = remote.stream->OnWelcome(welcome, Fd()); !s.ok()) {
      remote.stream.reset();
      return s;
    }
    loop_.Add(remote.stream->fd(), static_cast<uint64_t>(server), EPOLLIN);
    const std::map<uint64_t, RequestPtr> again = remote.unanswered;
    for (const auto& [number, request] : again) {
      if (request->operation != nullptr) Send(request);
    }
    return Status();
  });
}

void ClientThread::GiveUp(int server, const Status& status) {
  Post([this, server, status] {
    Remote& remote = remotes_[server];
    Drop(server);
    remote.given_up = status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      lost_.erase(std::remove(lost_.begin(), lost_.end(), server), lost_.end());
    }
    const std::map<uint64_t, RequestPtr> waiting = std::exchange(remote.unanswered, {});
    for (const auto& [number, request] : waiting) Settle(request, status);
  });
}

void ClientThread::Readmit(int server) {
  Post([this, server] { remotes_[server].given_up = Status(); });
}

int ClientThread::Silent(double seconds) {
  int silent = -1;
  const Status ignored = Ask([&] {
    TimePoint earliest = Clock::now() - DurationOf(seconds);
    for (size_t server = 0; server < remotes_.size(); ++server) {
      for (const auto& [number, request] : remotes_[server].unanswered) {
        if (request->operation == nullptr || !request->sent) continue;
        const TimePoint sent = request->deadline - DurationOf(timeout_seconds_);
        if (sent > earliest) continue;
        earliest = sent;
        silent = static_cast<int>(server);
      }
    }
    return Status();
  });
  return silent;
}

void ClientThread::CallLater(double seconds, std::function<void()> what) {
  const TimePoint due = Clock::now() + DurationOf(seconds);
  Post([this, due, what = std::move(what)] { later_.emplace(due, what); });
}

void ClientThread::CallWhatIsDue() {
  while (!later_.empty() && later_.begin()->first <= Clock::now()) {
    const auto what = std::move(later_.begin()->second);
    later_.erase(later_.begin());
    what();
  }
}

int ClientThread::WaitForLost(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return closing_ || !lost_.empty(); });
  if (lost_.empty()) return -1;
  const int server = lost_.front();
  lost_.pop_front();
  return server;
}

std::vector<ServerTraffic> ClientThread::Traffic() {
  std::vector<ServerTraffic> traffic;
  const Status asked = Ask([&] {
    for (const Remote& remote : remotes_) {
      traffic.push_back(remote.former);
      if (remote.stream == nullptr) continue;
      traffic.back().bytes_sent += remote.stream->bytes_sent();
      traffic.back().bytes_received += remote.stream->bytes_received();
    }
    return Status();
  });
  if (!asked.ok()) traffic.clear();
  return traffic;
}

Status ClientThread::Flush(double timeout_seconds) {
  std::string owing;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool over =
        changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                          [this] { return closing_ || open_pushes_ == 0 || !push_failure_.ok(); });
    if (closing_) return Closed();
    if (over) return std::exchange(push_failure_, Status());
  }
  const Status asked = Ask([&] {
    owing = ServersOwingPushes();
    return Status();
  });
  if (!asked.ok()) return asked;
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("no answer to a push within ", timeout_seconds, " s",
                       owing.empty() ? "" : " from ", owing));
}

void ClientThread::Run() {
  while (!stop_) {
    loop_.Wait(NextDeadline(), [this](uint64_t tag, uint32_t events) {
      HandleEvents(static_cast<int>(tag), events);
    });
    commands_.Run();
    CheckDeadlines();
    CallWhatIsDue();
    LoseStale();
    BeginWaiting();
    FlushConnections();
  }
  commands_.Close();  // earlier commands are refused, not dropped
  CancelAll(Closed());
}

TimePoint ClientThread::NextDeadline() const {
  TimePoint next = later_.empty() ? TimePoint::max() : later_.begin()->first;
  for (const Remote& remote : remotes_) {
    for (const auto& [number, request] : remote.unanswered) {
      if (request->operation != nullptr) next = std::min(next, request->deadline);
    }
  }
  return next;
}

void ClientThread::HandleEvents(int server, uint32_t events) {
  MessageStream* const stream = remotes_[server].stream.get();
  if (stream == nullptr) return;
  if (events & EPOLLOUT) {
    stream->Unblock();
    WatchWritable(server, false);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  if (!stream->Receive(remotes_[server]).ok()) Lose(server);
}

void ClientThread::WatchWritable(int server, bool on) {
  loop_.Change(remotes_[server].stream->fd(), static_cast<uint64_t>(server),
               on ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ClientThread::FlushConnections() {
  for (size_t server = 0; server < remotes_.size(); ++server) {
    MessageStream* const stream = remotes_[server].stream.get();
    if (stream == nullptr || stream->idle() || stream->blocked()) continue;
    stream->Flush(remotes_[server]);
    if (stream->blocked()) WatchWritable(static_cast<int>(server), true);
  }
}

// Not where it happens: a connection that is being read must stay.
void ClientThread::LoseStale() {
  for (size_t server = 0; server < remotes_.size(); ++server) {
    if (std::exchange(remotes_[server].stale, false)) Lose(static_cast<int>(server));
  }
}

void ClientThread::Lose(int server) {
  if (remotes_[server].stream == nullptr) return;
  Drop(server);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost_.push_back(server);
  }
  changed_.notify_all();
}

// Releases the connection. Unanswered requests wait for the next one.
void ClientThread::Drop(int server) {
  Remote& remote = remotes_[server];
  if (remote.stream == nullptr) return;
  const uint64_t received = remote.stream->payload_received();
  const uint64_t touched = remote.stream->payload_touched();
  remote.former.bytes_sent += remote.stream->bytes_sent();
  remote.former.bytes_received += remote.stream->bytes_received();
  remote.stream.reset();
  remote.stale = false;
  const std::map<uint64_t, RequestPtr> unanswered = remote.unanswered;
  for (const auto& [number, request] : unanswered) {
    request->sent = false;
    request->deadline = TimePoint::max();
    request->refusal = Status();
    const OperationPtr operation = request->operation;
    if (std::exchange(request->receiving, false)) {
      operation->OnBroken(*request, received, touched);
    }
    if (operation == nullptr || operation->kind() == Operation::Kind::kLeave) {
      remote.unanswered.erase(number);
      Settle(request, Status());
    } else if (!operation->status.ok() && operation->kind() != Operation::Kind::kPush) {
      remote.unanswered.erase(number);  // it was being received when the operation failed
      Settle(request, Status());
    }
  }
}

// Operations.

// In order: operations behind a waiting operation wait, too.
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
    request->event = ProcessEvents().Submit(EventOf(*request, *operation));
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
  if (status.ok() && remote.stream != nullptr) {
    status = request->operation->Meta(*request, remote.view, &meta);
  }
  if (!status.ok() || (leaving && remote.stream == nullptr)) {
    remote.unanswered.erase(request->id);
    return Settle(request, leaving ? Status() : status);
  }
  if (remote.stream == nullptr) return;
  remote.stream->Queue(HeaderOf(request->type, request->id), std::move(meta), request->payload,
                       {request});
  request->sent = true;
  const TimePoint now = Clock::now();
  ProcessEvents().Start(request->event, now);
  request->deadline = now + DurationOf(timeout_seconds_);
}

// The operation waits for this request no more: it was answered, or it failed.
void ClientThread::Settle(const RequestPtr& request, const Status& status) {
  const OperationPtr operation = std::exchange(request->operation, nullptr);
  if (operation == nullptr) return;
  ProcessEvents().End(request->event, status);
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
  if (status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kUnavailable) {
    NoteFailure(status);
  }
  if (operation->kind() == Kind::kPush) return NotePushFailure(status);
  std::vector<RequestPtr> receiving;
  for (const RequestPtr& request : operation->open) {
    Remote& remote = remotes_[request->server];
    if (request->receiving) {
      receiving.push_back(request);
      continue;
    }
    request->operation = nullptr;
    ProcessEvents().End(request->event, status);
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
        const TimePoint sent = request->deadline - DurationOf(timeout_seconds_);
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
      if (operation != nullptr) ProcessEvents().End(request->event, status);
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

// Answers.

Status ClientThread::Remote::OnFrame(const FrameHeader& header, std::string_view meta) {
  target.clear();
  return thread->OnAnswer(this, header, meta);
}

Status ClientThread::Remote::OnPayload(const FrameHeader&, uint64_t, std::vector<iovec>* to) {
  *to = std::exchange(target, {});
  return Status();
}

Status ClientThread::Remote::OnFrameEnd(const FrameHeader& header) {
  thread->OnAnswerEnd(this, header);
  return Status();
}

Status ClientThread::OnAnswer(Remote* remote, const FrameHeader& header, std::string_view meta) {
  const auto found = remote->unanswered.find(header.key);
  if (found == remote->unanswered.end() || !found->second->sent) {
    return Status(StatusCode::kInvalidArgument, "an answer without a request");
  }
  Request& request = *found->second;
  if (header.type == static_cast<uint8_t>(MessageType::kError)) {
    ErrorReply reply;
    if (Status s = Decode(meta, &reply); !s.ok()) return s;
    request.refusal = Status(reply.code, StrCat("ps ", request.server, ": ", reply.message));
  } else if (header.type != static_cast<uint8_t>(MessageType::kOk)) {
    return Status(StatusCode::kInvalidArgument, "an answer of no known kind");
  }
  if (request.operation == nullptr) return Status();
  if (request.refusal.ok()) {
    if (Status s = request.operation->OnAnswer(request, &remote->view, meta, header.payload_bytes,
                                               &remote->target);
        !s.ok()) {
      return s;
    }
  }
  request.receiving = true;
  return Status();
}

void ClientThread::OnAnswerEnd(Remote* remote, const FrameHeader& header) {
  const auto found = remote->unanswered.find(header.key);
  if (found == remote->unanswered.end()) return;
  const RequestPtr request = found->second;
  remote->unanswered.erase(found);
  request->receiving = false;
  Status status = request->refusal;
  if (status.ok() && request->operation != nullptr) {
    status = request->operation->OnPayload(*request);
  }
  Settle(request, status);
}

}  // namespace tfdist::ps
