#include "core/ps/server/server_thread.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

namespace tfdist::ps {
namespace {

constexpr std::chrono::seconds kPause{
    1};  // before operations that failed for want of memory are tried again

// Short, so that it needs no memory.
Status NoMemory() { return Status(StatusCode::kUnavailable, "out of memory"); }

}  // namespace

ServerThread::ServerThread(Store* store, RequestHandler* handler, TrafficStats* stats)
    : store_(store), handler_(handler), stats_(stats) {}

ServerThread::~ServerThread() { Stop(); }

Status ServerThread::Create() { return loop_.Create(); }

void ServerThread::Start(Acceptor* acceptor) {
  acceptor_ = acceptor;
  thread_ = std::thread([this] { Run(); });
}

void ServerThread::Stop() {
  if (!thread_.joinable()) return;
  Post([](Mail* mail) { mail->stop = true; });
  thread_.join();
}

template <typename Put>
void ServerThread::Post(const Put& put) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      put(&mail_);
    } catch (const std::bad_alloc&) {
      mail_.lost = true;
    }
  }
  loop_.Wake();
}

void ServerThread::Adopt(uint64_t session, int worker, PeerSocket socket) {
  Post([&](Mail* mail) { mail->arrivals.push_back({session, worker, std::move(socket)}); });
}

void ServerThread::Deliver(uint64_t session, Answer answer) {
  Post([&](Mail* mail) { mail->answers.emplace_back(session, std::move(answer)); });
}

void ServerThread::Disconnect(uint64_t session) {
  Post([&](Mail* mail) { mail->disconnected.push_back(session); });
}

void ServerThread::WakeTimer() {
  Post([](Mail* mail) { mail->timer = true; });
}

void ServerThread::Run() {
  do {
    loop_.Wait(NextDeadline(), [this](uint64_t tag, uint32_t events) { HandleEvent(tag, events); });
    CheckTime();
  } while (ReadMail());
  stats_->connections -= sessions_.size();
  sessions_.clear();
}

TimePoint ServerThread::NextDeadline() const {
  return acceptor_ == nullptr ? due_ : std::min(due_, acceptor_->NextDeadline());
}

void ServerThread::HandleEvent(uint64_t tag, uint32_t events) {
  if (tag >= Acceptor::kFirstTag) {
    try {
      acceptor_->OnReady(tag);
    } catch (const std::bad_alloc&) {  // the peer connects again
    }
  } else {
    try {
      HandleSession(tag, events);
    } catch (const std::bad_alloc&) {  // there was not even memory to refuse the request
      End(tag, NoMemory());
    }
  }
}

void ServerThread::CheckTime() {
  if (acceptor_ == nullptr) return;
  const TimePoint now = Clock::now();
  acceptor_->CheckTime(now);
  if (due_ > now) return;
  try {
    handler_->CheckTime(now);
    due_ = handler_->NextDeadline();
  } catch (const std::bad_alloc&) {
    due_ = now + kPause;
  }
}

bool ServerThread::ReadMail() {
  Mail mail;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(mail, mail_);
  }
  for (Arrival& arrival : mail.arrivals) {
    try {
      Adopt(&arrival);
    } catch (const std::bad_alloc&) {  // the worker tries again
      End(arrival.session, NoMemory());
    }
  }
  for (auto& [id, answer] : mail.answers) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) continue;
    try {
      found->second.session->Send(std::move(answer));
      Flush(id);
    } catch (const std::bad_alloc&) {
      End(id, NoMemory());
    }
  }
  for (const uint64_t id : mail.disconnected) {
    End(id, Status(StatusCode::kUnavailable, "the worker has connected anew"));
  }
  if (mail.lost) EndAll();
  if (mail.timer) due_ = handler_->NextDeadline();
  return !mail.stop;
}

void ServerThread::Adopt(Arrival* arrival) {
  std::unique_ptr<Session>& session = sessions_[arrival->session].session;
  session = std::make_unique<Session>(arrival->session, arrival->worker, std::move(arrival->socket),
                                      store_, [this, &session](ClientRequest request) {
                                        return OnRequest(session.get(), std::move(request));
                                      });
  ++stats_->connections;
  Watch(arrival->session, false);
  Flush(arrival->session);
}

// Workers then connect again, and repeat their unanswered requests.
void ServerThread::EndAll() {
  while (!sessions_.empty()) End(sessions_.begin()->first, NoMemory());
}

void ServerThread::HandleSession(uint64_t id, uint32_t events) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session* const session = found->second.session.get();
  Status status;
  if (events & EPOLLOUT) session->Unblock();
  if (events & EPOLLIN) {
    status = session->Receive();
  } else if (events & (EPOLLERR | EPOLLHUP)) {
    status = Status(StatusCode::kUnavailable, "the connection was closed");
  }
  if (status.ok()) return Flush(id);
  Break(id, status);
}

Status ServerThread::OnRequest(Session* session, ClientRequest request) {
  if (std::optional<Answer> answer = handler_->Execute(session->client(), std::move(request))) {
    session->Send(*std::move(answer));
  }
  return Status();
}

void ServerThread::Flush(uint64_t id) {
  Owned& owned = sessions_.at(id);
  Session* const session = owned.session.get();
  for (;;) {
    // Before the worker has its answer, after which it may ask for these.
    stats_->bytes_received += session->bytes_received() - owned.bytes_received;
    owned.bytes_received = session->bytes_received();
    session->Flush();
    stats_->bytes_sent += session->bytes_sent() - owned.bytes_sent;
    owned.bytes_sent = session->bytes_sent();
    if (!session->stalled() || !session->wants_input()) break;
    if (const Status status = session->Receive(); !status.ok()) return Break(id, status);
  }
  Watch(id, true);
}

// Ends a session because of its requests, or of their absence.
void ServerThread::Break(uint64_t id, const Status& why) {
  if (why.code() != StatusCode::kUnavailable) ++stats_->broken_requests;
  End(id, why);
}

void ServerThread::Watch(uint64_t id, bool added) {
  Owned& owned = sessions_.at(id);
  uint32_t events = 0;
  if (owned.session->wants_input()) events |= EPOLLIN;
  if (owned.session->has_output()) events |= EPOLLOUT;
  if (added && events == owned.watched) return;
  owned.watched = events;
  if (added) {
    loop_.Change(owned.session->socket(), id, events);
  } else {
    loop_.Add(owned.session->socket(), id, events);
  }
}

void ServerThread::End(uint64_t id, const Status& why) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  try {
    handler_->EndConnection(*found->second.session->client(), why.message());
  } catch (const std::bad_alloc&) {  // the worker's loss is told when it connects again
  }
  sessions_.erase(found);  // closes the socket, which also ends its watch
  --stats_->connections;
}

}  // namespace tfdist::ps
