#include "rendezvous/delivering.h"

namespace tryst {
namespace {

thread_local int scopes = 0;

}  // namespace

DeliveringScope::DeliveringScope() { ++scopes; }

DeliveringScope::~DeliveringScope() { --scopes; }

bool DeliversForOthers() { return scopes != 0; }

}  // namespace tryst
