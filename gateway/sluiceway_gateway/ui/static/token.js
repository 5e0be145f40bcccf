// The bearer token of this tab, and its account: kept by signIn(), forgotten by signOut().

import { batch, signal } from "./view.js";

const KEY = "sluiceway.token";

// Of the tab's session: closing the tab forgets it.
export const token = signal(sessionStorage.getItem(KEY));
// Why the sign-in form is shown; null while it is not.
export const signInReason = signal(null);

// The token in use, as in `GET /v1/token`; null until it is read.
export const account = signal(null);

export function signIn(given) {
  sessionStorage.setItem(KEY, given);
  batch(() => {
    token.value = given;
    signInReason.value = null;
  });
}

export function signOut(reason) {
  sessionStorage.removeItem(KEY);
  // Together, so that nothing is requested without a token in between.
  batch(() => {
    account.value = null;
    token.value = null;
    signInReason.value = reason;
  });
}
