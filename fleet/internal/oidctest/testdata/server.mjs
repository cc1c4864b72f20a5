// An OpenID provider for tests. Its pages ask for a user's name and for nothing else, and load
// nothing from other servers. Its configuration is a JSON object in the first argument; it
// prints its issuer, and ends when its standard input does.
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import Provider from 'oidc-provider';

const { clients, groups } = JSON.parse(process.argv[2]);
const page = (content) => `<!DOCTYPE html><html lang="en"><title>Provider</title><main>${content}</main></html>`;
const server = createServer();
await new Promise((done) => server.listen(0, 'localhost', done));
const issuer = `http://localhost:${server.address().port}`;
const provider = new Provider(issuer, {
  clients,
  claims: { openid: ['sub', 'groups'], email: ['email', 'email_verified'] },
  conformIdTokenClaims: false, // the ID token has the claims of the scopes
  cookies: { keys: ['tests only'] },
  features: {
    devInteractions: { enabled: false },
    revocation: { enabled: true },
    rpInitiatedLogout: {
      enabled: true,
      logoutSource: async (ctx, form) => { ctx.body = page(`<h1>Sign out?</h1>${form}<button form="op.logoutForm" name="logout" value="yes">Yes</button>`); },
    },
  },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups }),
  }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  pkce: { required: () => true },
});
const callback = provider.callback();
server.on('request', async (req, res) => {
  if (!req.url.startsWith('/interaction/')) {
    callback(req, res);
    return;
  }
  try {
    const { params } = await provider.interactionDetails(req, res);
    if (req.method === 'GET') {
      res.setHeader('Content-Type', 'text/html').end(page('<form method="post"><label>User <input name="user"></label><button>Continue</button></form>'));
      return;
    }
    const accountId = new URLSearchParams(await text(req)).get('user');
    const grant = new provider.Grant({ accountId, clientId: params.client_id });
    grant.addOIDCScope(params.scope);
    await provider.interactionFinished(req, res, { login: { accountId }, consent: { grantId: await grant.save() } });
  } catch (err) {
    res.writeHead(500).end(String(err));
  }
});
console.log(issuer);
process.stdin.on('end', () => process.exit()).resume();
