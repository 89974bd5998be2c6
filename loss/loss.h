// Everything of greyhound::loss.
#pragma once

#include <greyhound/loss/chunked_linear_cross_entropy.h>
#include <greyhound/loss/chunked_linear_loss.h>
#include <greyhound/loss/chunked_linear_selective_log_softmax.h>
#include <greyhound/loss/cross_entropy.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/plan.h>
#include <greyhound/loss/scale_gradients.h>
#include <greyhound/loss/selective_log_softmax.h>
#include <greyhound/loss/sums.h>
#include <greyhound/loss/tune.h>
