// The thread and its connections. What becomes of operations is in client_operations.cc.
#include "core/ps/client/client_thread.h"

#include <algorithm>
#include <future>
#include <utility>

namespace tfdist::ps {
namespace {

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
    : timeout_seconds_(timeout_seconds), remotes_(servers) {}

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

Status ClientThread::Adopt(int server, Fd socket, Lending lending, const ServerView& view) {
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
    remote.connection = std::make_unique<Connection>(server, std::move(socket), std::move(lending));
    loop_.Add(remote.connection->fd(), static_cast<uint64_t>(server), EPOLLIN);
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

void ClientThread::CallLater(double seconds, std::function<void()> what) {
  const TimePoint due = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
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
  commands_.Close();  // what came in until then is refused, not forgotten
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
  Connection* const connection = remotes_[server].connection.get();
  if (connection == nullptr) return;
  if (events & EPOLLOUT) {
    connection->Unblock();
    WatchWritable(server, false);
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  if (!connection->Receive(*this).ok()) Lose(server);
}

void ClientThread::WatchWritable(int server, bool on) {
  loop_.Change(remotes_[server].connection->fd(), static_cast<uint64_t>(server),
               on ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void ClientThread::FlushConnections() {
  for (size_t server = 0; server < remotes_.size(); ++server) {
    Connection* const connection = remotes_[server].connection.get();
    if (connection == nullptr || connection->idle() || connection->blocked()) continue;
    connection->Flush();
    if (connection->blocked()) WatchWritable(static_cast<int>(server), true);
  }
}

// Not where it happens: a connection that is being read must stay.
void ClientThread::LoseStale() {
  for (size_t server = 0; server < remotes_.size(); ++server) {
    if (std::exchange(remotes_[server].stale, false)) Lose(static_cast<int>(server));
  }
}

void ClientThread::Lose(int server) {
  if (remotes_[server].connection == nullptr) return;
  Drop(server);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost_.push_back(server);
  }
  changed_.notify_all();
}

// Lets go of the connection. What was not answered waits for the next one.
void ClientThread::Drop(int server) {
  Remote& remote = remotes_[server];
  if (remote.connection == nullptr) return;
  const uint64_t received = remote.connection->payload_received();
  const uint64_t touched = remote.connection->payload_touched();
  remote.connection.reset();
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

}  // namespace tfdist::ps
